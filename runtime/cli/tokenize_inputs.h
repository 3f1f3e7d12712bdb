// The texts `capstan data tokenize` reads: which files, in which order, and where each is cut into
// training and validation text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

// Files, in the order given; a directory gives the regular files below it, sorted by path, hidden
// ones left out; "-" is standard input. Refuses what does not exist and directories without a file.
absl::StatusOr<std::vector<std::string>> ListInputs(const std::vector<std::string>& arguments);

// A text open for reading. [one thread]
class InputText {
 public:
  // Standard input of unknown length is first copied to a file in `scratch` that has no name.
  static absl::StatusOr<InputText> Open(const std::string& path, bool need_size,
                                        const std::string& scratch);
  InputText(InputText&& other) noexcept;
  InputText& operator=(InputText&&) = delete;
  ~InputText();

  int64_t size() const { return size_; }  // -1: unknown
  // The byte at which the last `fraction` of the text begins, moved on to the start of a UTF-8
  // character.
  absl::StatusOr<int64_t> CutBefore(double fraction) const;
  // Hands [begin, end) to `take` in pieces; `last` is true with the final one, which may be empty.
  // end -1: all there is.
  using Taker = std::function<absl::Status(std::string_view piece, bool last)>;
  absl::Status Read(int64_t begin, int64_t end, const Taker& take);

 private:
  InputText(std::string name, int fd, int64_t size)
      : name_(std::move(name)), fd_(fd), size_(size) {}
  absl::Status Spool(const std::string& scratch);
  absl::Status Failed(const char* what) const;

  std::string name_;
  int fd_ = -1;
  int64_t size_ = -1;
};

}  // namespace capstan
