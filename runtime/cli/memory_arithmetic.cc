#include "runtime/cli/memory_arithmetic.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_join.h"
#include "runtime/status.h"
#include "runtime/suggest.h"

namespace capstan {
namespace {

constexpr double kMostParameters = 1e18;  // far beyond any model; keeps the sums exact enough
constexpr int64_t kMostRanks = int64_t{1} << 32;

absl::Status Unknown(const char* option, const std::string& value,
                     const std::vector<std::string>& known) {
  return UsageError(option, " ", value, ": there are ", absl::StrJoin(known, ", "),
                    DidYouMean(value, known));
}

}  // namespace

const std::vector<std::string>& BillPrecisions() {
  static const std::vector<std::string> names = {"mixed", "fp32", "bf16"};
  return names;
}

const std::vector<std::string>& BillStrategies() {
  static const std::vector<std::string> names = {"zero1", "zero2", "zero3"};
  return names;
}

absl::StatusOr<BytesPerParameter> BytesOf(const std::string& precision) {
  if (precision == "mixed") return BytesPerParameter{2, 2, 4, 8};
  if (precision == "fp32") return BytesPerParameter{4, 4, 0, 8};
  if (precision == "bf16") return BytesPerParameter{2, 2, 0, 4};
  return Unknown("--precision", precision, BillPrecisions());
}

absl::StatusOr<MemoryBill> BillOf(double parameters, const std::string& precision,
                                  const std::string& strategy, int64_t ranks) {
  if (!(parameters >= 1 && parameters <= kMostParameters)) {
    return UsageError("--params ", parameters,
                      ": give a number of parameters from 1 to 1e18, for example 13e9");
  }
  if (ranks < 1 || ranks > kMostRanks) {
    return UsageError("--ranks ", ranks, ": give a number of ranks from 1 to ", kMostRanks);
  }
  const std::vector<std::string>& strategies = BillStrategies();
  const auto found = std::find(strategies.begin(), strategies.end(), strategy);
  if (!strategy.empty() && found == strategies.end()) {
    return Unknown("--strategy", strategy, strategies);
  }
  CAPSTAN_ASSIGN_OR_RETURN(const BytesPerParameter each, BytesOf(precision));
  const auto stage = strategy.empty() ? 0 : found - strategies.begin() + 1;
  const auto share = [&](int from) { return stage >= from ? 1.0 / static_cast<double>(ranks) : 1; };
  return MemoryBill{parameters * each.parameters * share(3), parameters * each.gradients * share(2),
                    parameters * each.optimizer() * share(1)};
}

int64_t FewestRanks(const MemoryBill& of_one_rank, double memory) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(of_one_rank.total() / memory)));
}

}  // namespace capstan
