// Everything wrong with a configuration, reported together.
#ifndef CAPSTAN_RUNTIME_CONFIG_PROBLEMS_H_
#define CAPSTAN_RUNTIME_CONFIG_PROBLEMS_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "runtime/config/value.h"
#include "runtime/status.h"

namespace capstan {

class Problems {
 public:
  // `sentence` says what is wrong and what to write instead, full stop included.
  void Add(const Position& position, std::string sentence) {
    std::string line = position.source == nullptr ? std::move(sentence)
                                                  : StrCat(position.ToString(), ": ", sentence);
    // One mistake may be met by several readers of the same key.
    if (std::find(lines_.begin(), lines_.end(), line) == lines_.end()) {
      lines_.push_back(std::move(line));
    }
  }

  bool empty() const { return lines_.empty(); }
  const std::vector<std::string>& lines() const { return lines_; }

  // OK, the one problem, or all of them, one a line.
  absl::Status ToStatus() const {
    if (lines_.empty()) return absl::OkStatus();
    if (lines_.size() == 1) return UsageError(lines_.front());
    return UsageError("the configuration has ", lines_.size(), " problems:\n  ",
                      absl::StrJoin(lines_, "\n  "));
  }

 private:
  std::vector<std::string> lines_;
};

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_CONFIG_PROBLEMS_H_
