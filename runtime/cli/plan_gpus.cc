#include "runtime/cli/plan_gpus.h"

#include <cctype>

#include "absl/strings/str_join.h"
#include "runtime/status.h"
#include "runtime/suggest.h"

namespace capstan {
namespace {

// Letters and digits in lower case, without the words people put in or leave out.
std::string Plain(const std::string& name) {
  std::string plain;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) continue;
    plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const std::string word : {"nvidia", "geforce", "gib"}) {
    if (const size_t at = plain.find(word); at != std::string::npos) plain.erase(at, word.size());
  }
  return plain;
}

std::string Names(const std::vector<Gpu>& gpus) {
  return absl::StrJoin(gpus, ", ", [](std::string* out, const Gpu& g) { out->append(g.name); });
}

// Full names, and the names without their size.
std::vector<std::string> Spellings() {
  std::vector<std::string> all;
  for (const Gpu& gpu : KnownGpus()) {
    all.push_back(gpu.name);
    all.push_back(gpu.name.substr(0, gpu.name.rfind(' ')));
  }
  return all;
}

}  // namespace

// A data sheet's "80GB" is 80 GiB of memory chips, less what the card keeps for error correction
// and itself, so neither 80e9 bytes nor 80 GiB is right. The table holds "memory.total" of
// nvidia-smi on each card, which is what a program can hope for.
const std::vector<Gpu>& KnownGpus() {
  static const std::vector<Gpu> gpus = {
      {"T4 16GB", 15360},     {"RTX 4090 24GB", 24564}, {"RTX 3090 24GB", 24576},
      {"V100 32GB", 32768},   {"A100 40GB", 40960},     {"L40S 48GB", 46068},
      {"H100 80GB", 81559},   {"A100 80GB", 81920},     {"H200 141GB", 143771},
      {"B200 180GB", 183359},
  };
  return gpus;
}

absl::StatusOr<Gpu> FindGpu(const std::string& name) {
  const std::string wanted = Plain(name);
  std::vector<Gpu> matches;
  for (const Gpu& gpu : KnownGpus()) {
    if (Plain(gpu.name) == wanted) return gpu;
    if (!wanted.empty() && Plain(gpu.name).find(wanted) != std::string::npos)
      matches.push_back(gpu);
  }
  if (matches.size() == 1) return matches.front();
  if (matches.size() > 1) {
    return UsageError("--gpu ", name, " may mean ", Names(matches), "; say which");
  }
  return UsageError("--gpu ", name, ": known are ", Names(KnownGpus()),
                    DidYouMean(name, Spellings()));
}

}  // namespace capstan
