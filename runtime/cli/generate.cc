#include <cmath>
#include <cstdio>
#include <filesystem>

#include "plugin_api/tokenizer.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/default_options.h"
#include "runtime/cli/run_directory.h"
#include "runtime/run/generator.h"
#include "runtime/run/session.h"
#include "runtime/status.h"

namespace capstan {
namespace {

using Tokenizer = Owned<capstan_tokenizer_v1>;

absl::StatusOr<std::vector<int32_t>> Encode(const Tokenizer& tokenizer, const std::string& text) {
  void* encoder = nullptr;
  CAPSTAN_RETURN_IF_ERROR(tokenizer->encoder_create(tokenizer.self(), &encoder));
  const uint32_t* ids = nullptr;
  size_t count = 0;
  const absl::Status status = FromC(
      tokenizer->encode(tokenizer.self(), encoder, text.data(), text.size(), 1, &ids, &count));
  std::vector<int32_t> tokens;
  if (status.ok()) tokens.assign(ids, ids + count);
  tokenizer->encoder_destroy(tokenizer.self(), encoder);
  if (!status.ok()) return status;
  return tokens;
}

absl::StatusOr<std::string> Decode(const Tokenizer& tokenizer, int32_t token) {
  const auto id = static_cast<uint32_t>(token);
  char text[512];
  size_t size = 0;
  CAPSTAN_RETURN_IF_ERROR(tokenizer->decode(tokenizer.self(), &id, 1, text, sizeof(text), &size));
  return std::string(text, std::min(size, sizeof(text)));
}

}  // namespace

absl::StatusOr<int> GenerateCommand(const GenerateArguments& arguments) {
  if (std::isnan(arguments.temperature) || std::isnan(arguments.top_p)) {
    return UsageError(std::isnan(arguments.top_p) ? "--top-p" : "--temperature",
                      " nan: give a number");
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
  RankInfo alone;
  alone.alone = true;
  host->SetRanks(alone);
  CAPSTAN_ASSIGN_OR_RETURN(const std::string checkpoint, FindCheckpoint(*host, arguments.run));
  // A checkpoint carries its config and is a folder of weights in published form.
  std::vector<std::string> set = {StrCat("model.weights=", checkpoint)};
  set.insert(set.end(), arguments.set.begin(), arguments.set.end());
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                           Session::Open(checkpoint + "/config.toml", set, host.get()));
  CAPSTAN_ASSIGN_OR_RETURN(const Tokenizer tokenizer, MakeWithDefaults<capstan_tokenizer_v1>(
                                                          *host, "tokenizer", arguments.tokenizer));
  const int64_t known = tokenizer->vocabulary(tokenizer.self());
  if (session->model_info().vocabulary < known) {
    return UsageError("the model has ", session->model_info().vocabulary, " tokens, tokenizer '",
                      arguments.tokenizer, "' has ", known,
                      "; give the --tokenizer the run was trained with");
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, Encode(tokenizer, arguments.prompt));
  if (prompt.empty())
    return UsageError("--prompt is empty; give at least one character to continue");
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<Generator> generator,
      Generator::Create(session.get(), checkpoint, static_cast<int64_t>(prompt.size()),
                        arguments.tokens));
  SamplingOptions sampling;
  sampling.temperature = arguments.temperature;
  sampling.top_k = arguments.top_k;
  sampling.top_p = arguments.top_p;
  sampling.seed = static_cast<uint64_t>(arguments.seed);
  const int64_t end = tokenizer->end_of_text(tokenizer.self());
  std::fputs(arguments.prompt.c_str(), stdout);
  absl::Status decoded;
  CAPSTAN_RETURN_IF_ERROR(
      generator->Run(std::move(prompt), arguments.tokens, known, sampling, [&](int32_t token) {
        if (token == end) return false;
        absl::StatusOr<std::string> text = Decode(tokenizer, token);
        if (!text.ok()) {
          decoded = text.status();
          return false;
        }
        std::fwrite(text->data(), 1, text->size(), stdout);
        std::fflush(stdout);
        return true;
      }));
  std::fputs("\n", stdout);
  CAPSTAN_RETURN_IF_ERROR(decoded);
  return kExitDone;
}

}  // namespace capstan
