#include "runtime/run/shares.h"

#include <utility>

#include "nlohmann/json.hpp"
#include "runtime/status.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

// What the lead works out of the lists of all ranks.
class Tally {
 public:
  // `texts`: the different lists; rank r's is texts[of[r]].
  absl::Status Take(const std::vector<std::string>& texts, const std::vector<int>& of) {
    std::vector<std::vector<int>> lists(texts.size());  // slices, by their numbers here
    for (int r = 0; r < static_cast<int>(of.size()); ++r) {
      std::vector<int>& list = lists[static_cast<size_t>(of[r])];
      if (list.empty()) {
        CAPSTAN_RETURN_IF_ERROR(Read(texts[static_cast<size_t>(of[r])], r, list));
      }
      std::vector<int64_t> turns;
      for (const int slice : list) turns.push_back(count_[static_cast<size_t>(slice)]++);
      turns_.push_back(std::move(turns));
      list_of_.push_back(list);
    }
    for (const auto& [key, known] : tensors_) {
      const auto& [tensor, held] = known;
      if (held >= ElementCount(tensor.shape)) continue;
      return BugError("stored tensor '", tensor.name, "' of shape ", ShapeString(tensor.shape),
                      " has ", ElementCount(tensor.shape), " elements, and the ", of.size(),
                      " ranks together hold ", held);
    }
    return absl::OkStatus();
  }

  std::string Tensors() const {
    Json list = Json::array();
    for (const auto& [key, known] : tensors_) {
      const BundleTensor& t = known.first;
      list.push_back({t.group, t.name, DTypeName(t.dtype), t.shape});
    }
    return list.dump();
  }

  // The turn and the number of turns of each slice of a rank's list.
  std::string SharesOf(int rank) const {
    Json list = Json::array();
    const auto r = static_cast<size_t>(rank);
    for (size_t i = 0; i < turns_[r].size(); ++i) {
      list.push_back({turns_[r][i], count_[static_cast<size_t>(list_of_[r][i])]});
    }
    return list.dump();
  }

 private:
  absl::Status Read(const std::string& text, int rank, std::vector<int>& list) {
    const Json items = Json::parse(text, nullptr, false);
    if (!items.is_array()) return BugError("rank ", rank, " gave no list of tensors");
    for (const Json& item : items) {
      BundleTensor tensor{item[1], item[0], kF32, item[3]};
      CAPSTAN_ASSIGN_OR_RETURN(tensor.dtype, ParseDType(item[2].get<std::string>()));
      auto& [known, held] =
          tensors_.try_emplace({tensor.group, tensor.name}, tensor, 0).first->second;
      if (known.shape != tensor.shape || !SameDType(known.dtype, tensor.dtype)) {
        return BugError("stored tensor '", tensor.name, "' has shape ", ShapeString(tensor.shape),
                        " and dtype ", DTypeName(tensor.dtype), " on rank ", rank, ", but ",
                        ShapeString(known.shape), " and ", DTypeName(known.dtype),
                        " elsewhere; every part of it must say the same");
      }
      const StoredSlice slice{tensor.name, tensor.group, tensor.shape, item[4], item[5], false};
      const auto [place, unseen] =
          slices_.try_emplace(Shares::SliceKey(slice), static_cast<int>(count_.size()));
      if (unseen) {
        count_.push_back(0);
        held += ElementCount(slice.extent);
      }
      list.push_back(place->second);
    }
    return absl::OkStatus();
  }

  // By group and name, with the elements that any rank holds.
  std::map<std::pair<std::string, std::string>, std::pair<BundleTensor, int64_t>> tensors_;
  std::map<std::string, int> slices_;
  std::vector<int64_t> count_;               // by slice: how many ranks hold it
  std::vector<std::vector<int64_t>> turns_;  // by rank, of each slice of its list
  std::vector<std::vector<int>> list_of_;    // by rank
};

}  // namespace

std::string Shares::SliceKey(const StoredSlice& s) {
  return StrCat(s.group, "\n", s.name, "\n", ShapeString(s.start), ShapeString(s.extent));
}

Shares::Share Shares::Of(const StoredSlice& slice) const {
  const auto found = by_slice.find(SliceKey(slice));
  return found == by_slice.end() ? Share{} : found->second;
}

// Each rank needs the turns of its own slices and the tensors of all, which the lead works out: what
// travels grows with the number of ranks, not with its square.
absl::StatusOr<Shares> ShareOut(const Ranks& ranks, std::string_view name,
                                const std::vector<std::pair<StoredSlice, DType>>& mine) {
  Json list = Json::array();
  for (const auto& [s, dtype] : mine) {
    list.push_back({s.group, s.name, DTypeName(dtype), s.shape, s.start, s.extent});
  }
  CAPSTAN_ASSIGN_OR_RETURN(const Ranks::Gathered all, ranks.ToLead(name, list.dump()));
  const auto key = [&](int rank) { return StrCat(name, ", rank ", rank); };
  std::string own;
  const auto work_out = [&]() -> absl::StatusOr<std::string> {
    Tally tally;
    CAPSTAN_RETURN_IF_ERROR(tally.Take(all.values, all.of));
    own = tally.SharesOf(0);
    // There before the others are told to look; they have looked before they come to the next ToLead.
    for (int r = 1; r < ranks.size(); ++r) {
      CAPSTAN_RETURN_IF_ERROR(ranks.bootstrap()->Put(key(r), tally.SharesOf(r)));
    }
    return tally.Tensors();
  };
  CAPSTAN_ASSIGN_OR_RETURN(const std::string tensors, ranks.FromLead(name, work_out));
  if (!ranks.lead()) {
    CAPSTAN_ASSIGN_OR_RETURN(own, ranks.bootstrap()->Get(key(ranks.rank())));
  }
  Shares shares;
  for (const Json& item : Json::parse(tensors, nullptr, false)) {
    BundleTensor tensor{item[1], item[0], kF32, item[3]};
    CAPSTAN_ASSIGN_OR_RETURN(tensor.dtype, ParseDType(item[2].get<std::string>()));
    shares.tensors.push_back(std::move(tensor));
  }
  const Json turns = Json::parse(own, nullptr, false);
  if (!turns.is_array() || turns.size() != mine.size()) {
    return BugError("rank ", ranks.rank(), " holds ", mine.size(), " slices, the lead knows of ",
                    turns.size());
  }
  for (size_t i = 0; i < mine.size(); ++i) {
    shares.by_slice[Shares::SliceKey(mine[i].first)] = {turns[i][0], turns[i][1]};
  }
  return shares;
}

}  // namespace capstan
