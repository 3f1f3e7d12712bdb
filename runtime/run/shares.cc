#include "runtime/run/shares.h"

#include "nlohmann/json.hpp"
#include "runtime/status.h"

namespace capstan {

std::string Shares::SliceKey(const StoredSlice& s) {
  return StrCat(s.group, "\n", s.name, "\n", ShapeString(s.start), ShapeString(s.extent));
}

Shares::Share Shares::Of(const StoredSlice& slice) const {
  const auto found = by_slice.find(SliceKey(slice));
  return found == by_slice.end() ? Share{} : found->second;
}

absl::StatusOr<Shares> ShareOut(const Ranks& ranks, std::string_view name,
                                const std::vector<std::pair<StoredSlice, DType>>& mine) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [s, dtype] : mine) {
    list.push_back({s.group, s.name, DTypeName(dtype), s.shape, s.start, s.extent});
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.Exchange(name, list.dump()));
  Shares shares;
  std::map<std::pair<std::string, std::string>, StoredTensor> tensors;
  std::map<std::pair<std::string, std::string>, int64_t> held;  // elements, of any rank
  for (int r = 0; r < static_cast<int>(all.size()); ++r) {
    const auto items = nlohmann::json::parse(all[r], nullptr, false);
    if (!items.is_array()) return BugError("rank ", r, " gave no list of tensors");
    for (const auto& item : items) {
      StoredTensor tensor{item[1], item[0], kF32, item[3]};
      CAPSTAN_ASSIGN_OR_RETURN(tensor.dtype, ParseDType(item[2].get<std::string>()));
      const auto [it, fresh] = tensors.try_emplace({tensor.group, tensor.name}, tensor);
      const StoredTensor& known = it->second;
      if (known.shape != tensor.shape || !SameDType(known.dtype, tensor.dtype)) {
        return BugError("stored tensor '", tensor.name, "' has shape ", ShapeString(tensor.shape),
                        " and dtype ", DTypeName(tensor.dtype), " on rank ", r, ", but ",
                        ShapeString(known.shape), " and ", DTypeName(known.dtype),
                        " elsewhere; every part of it must say the same");
      }
      StoredSlice slice{tensor.name, tensor.group, tensor.shape, item[4], item[5], false};
      const auto [place, unseen] =
          shares.by_slice.try_emplace(Shares::SliceKey(slice), Shares::Share{0, 0});
      Shares::Share& share = place->second;
      if (unseen) held[{tensor.group, tensor.name}] += ElementCount(slice.extent);
      if (r == ranks.rank()) share.index = share.count;
      ++share.count;
    }
  }
  for (auto& [key, tensor] : tensors) {
    if (held[key] < ElementCount(tensor.shape)) {
      return BugError("stored tensor '", tensor.name, "' of shape ", ShapeString(tensor.shape),
                      " has ", ElementCount(tensor.shape), " elements, and the ", all.size(),
                      " ranks together hold ", held[key]);
    }
    shares.tensors.push_back(std::move(tensor));
  }
  return shares;
}

}  // namespace capstan
