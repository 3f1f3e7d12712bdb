// Logits of a sequence, for comparison with other implementations: prefill of the first token, then one
// decode step a token.
//
//   parity_logits CONFIG WEIGHTS < tokens (i32, native order) > logits (f32, [tokens, vocabulary])
#include <cstdio>
#include <vector>

#include "runtime/run/generator.h"
#include "runtime/run/session.h"

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "parity_logits: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: parity_logits CONFIG WEIGHTS < tokens > logits\n");
    return 2;
  }
  std::vector<int32_t> tokens(1 << 16);
  tokens.resize(std::fread(tokens.data(), sizeof(int32_t), tokens.size(), stdin));
  auto host = capstan::HostEnvironment::Create();
  if (!host.ok()) return Fail(host.status());
  auto session =
      capstan::Session::Open(argv[1], {std::string("model.weights=") + argv[2]}, host->get());
  if (!session.ok()) return Fail(session.status());
  auto generator = capstan::Generator::Create(session->get(), argv[2], 1,
                                              static_cast<int64_t>(tokens.size()) - 1);
  if (!generator.ok()) return Fail(generator.status());
  const absl::Status scored = (*generator)->Score(tokens, [](const std::vector<float>& row) {
    std::fwrite(row.data(), sizeof(float), row.size(), stdout);
  });
  return scored.ok() ? 0 : Fail(scored);
}
