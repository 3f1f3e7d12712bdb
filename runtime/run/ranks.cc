#include "runtime/run/ranks.h"

#include <algorithm>
#include <map>

#include "nlohmann/json.hpp"
#include "runtime/launch/sha256.h"
#include "runtime/status.h"

namespace capstan {
namespace {

// A status as text: "" is OK.
std::string Pack(const absl::Status& status) {
  if (status.ok()) return "";
  return nlohmann::json{{"class", StatusClass(status)},
                        {"retryable", IsRetryable(status)},
                        {"culprit", CulpritRank(status)},
                        {"message", std::string(status.message())}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status Unpack(const std::string& text, std::string_view before) {
  if (text.empty()) return absl::OkStatus();
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return BugError("a rank's status cannot be read: ", text);
  return MakeStatus(json["class"], StrCat(before, json["message"].get<std::string>()),
                    json["retryable"], json["culprit"]);
}

}  // namespace

absl::Status Ranks::Agree(std::string_view name, const absl::Status& mine) const {
  if (size() == 1) return mine;
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           bootstrap_->ExchangeStrings(name, Pack(mine)));
  if (!mine.ok()) return mine;
  for (size_t r = 0; r < all.size(); ++r) {
    CAPSTAN_RETURN_IF_ERROR(Unpack(all[r], StrCat("rank ", r, ": ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Ranks::FromLead(
    std::string_view name, const std::function<absl::StatusOr<std::string>()>& make) const {
  if (size() == 1) return make();
  std::string value;
  absl::Status status;
  if (lead()) {
    absl::StatusOr<std::string> made = make();
    status = made.status();
    if (made.ok()) value = *std::move(made);
  }
  const std::string key = StrCat(name, " of rank 0");
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      bootstrap_->ExchangeStrings(key, lead() ? StrCat(Pack(status), "\n", value) : ""));
  const size_t end = all[0].find('\n');
  CAPSTAN_RETURN_IF_ERROR(Unpack(all[0].substr(0, end), ""));
  return all[0].substr(end + 1);
}

absl::StatusOr<Ranks::Gathered> Ranks::ToLead(std::string_view name,
                                              const std::string& value) const {
  if (size() == 1) return Gathered{{value}, {0}};
  const std::string mine = ToHex(AsText(Sha256(value)));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           bootstrap_->ExchangeStrings(name, mine));
  // Named by what they are, so that one from before is never taken for another.
  const auto key = [&](const std::string& hash) { return StrCat(name, " ", hash); };
  Gathered gathered;
  if (!lead()) {
    const auto first = std::find(all.begin(), all.end(), mine) - all.begin();
    if (first == rank()) CAPSTAN_RETURN_IF_ERROR(bootstrap_->Put(key(mine), value));
    return gathered;
  }
  std::map<std::string, int> known = {{mine, 0}};
  gathered.values = {value};
  for (const std::string& hash : all) {
    const auto [it, fresh] = known.try_emplace(hash, static_cast<int>(gathered.values.size()));
    gathered.of.push_back(it->second);
    if (!fresh) continue;
    CAPSTAN_ASSIGN_OR_RETURN(std::string other, bootstrap_->Get(key(hash)));
    gathered.values.push_back(std::move(other));
  }
  return gathered;
}

absl::StatusOr<std::vector<std::string>> Ranks::Exchange(std::string_view name,
                                                         std::string_view value) const {
  if (size() == 1) return std::vector<std::string>{std::string(value)};
  return bootstrap_->ExchangeStrings(name, value);
}

}  // namespace capstan
