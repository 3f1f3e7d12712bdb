// The ranks of a run as its trainer sees them: who leads, and how all come to the same decision.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/launch/bootstrap.h"
#include "runtime/launch/rank_status.h"

namespace capstan {

// Every call is made by all ranks alike, in the same order. Rank 0 leads: it alone writes what a run
// has one of. [main thread]
class Ranks {
 public:
  // One rank by itself.
  Ranks() = default;
  // Both must outlive this object; `status` may be nullptr.
  Ranks(Bootstrap* bootstrap, RankStatus* status) : bootstrap_(bootstrap), status_(status) {}

  int rank() const { return bootstrap_ == nullptr ? 0 : bootstrap_->rank(); }
  int size() const { return bootstrap_ == nullptr ? 1 : bootstrap_->size(); }
  bool lead() const { return rank() == 0; }
  Bootstrap* bootstrap() const { return bootstrap_; }
  RankStatus* status() const { return status_; }

  // OK when every rank gives OK. Otherwise each rank that failed gets its own failure back, and the
  // others the first of them, with its rank.
  absl::Status Agree(std::string_view name, const absl::Status& mine) const;
  // What `make` gives on the lead, on every rank; or its failure.
  absl::StatusOr<std::string> FromLead(
      std::string_view name, const std::function<absl::StatusOr<std::string>()>& make) const;
  // The values of all ranks, each different one once: rank r's is values[of[r]].
  struct Gathered {
    std::vector<std::string> values;
    std::vector<int> of;
  };
  // Every rank gives a value of up to 32 MiB, the lead gets them; the others get none. Equal values
  // travel once, so that this costs as much as there are different ones.
  absl::StatusOr<Gathered> ToLead(std::string_view name, const std::string& value) const;
  // A value of every rank, in their order. All travel to all: for short ones.
  absl::StatusOr<std::vector<std::string>> Exchange(std::string_view name,
                                                    std::string_view value) const;

 private:
  Bootstrap* bootstrap_ = nullptr;
  RankStatus* status_ = nullptr;
};

}  // namespace capstan
