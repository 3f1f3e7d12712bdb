#include "runtime/cli/tokenize_inputs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "runtime/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = size_t{1} << 20;
constexpr int kLongestCharacter = 4;  // of UTF-8

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

absl::Status AddDirectory(const std::string& directory, std::vector<std::string>& files) {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator it(directory, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (it->path().filename().native().starts_with(".")) {
      it.disable_recursion_pending();
      continue;
    }
    std::error_code ignored;  // a link to nowhere is no text
    if (fs::is_regular_file(it->path(), ignored)) found.push_back(it->path().string());
  }
  if (error) return DataError("cannot list ", directory, ": ", error.message());
  if (found.empty()) return DataError("there is no file in ", directory);
  std::sort(found.begin(), found.end());
  files.insert(files.end(), found.begin(), found.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListInputs(const std::vector<std::string>& arguments) {
  std::vector<std::string> files;
  for (const std::string& argument : arguments) {
    std::error_code error;
    if (argument == "-") {
      files.push_back(argument);
    } else if (fs::is_directory(argument, error)) {
      CAPSTAN_RETURN_IF_ERROR(AddDirectory(argument, files));
    } else if (fs::exists(argument, error)) {
      files.push_back(argument);
    } else {
      return UsageError("input ", argument, " does not exist");
    }
  }
  if (std::count(files.begin(), files.end(), "-") > 1) {
    return UsageError("standard input (-) can be read only once");
  }
  return files;
}

absl::StatusOr<InputText> InputText::Open(const std::string& path, bool need_size,
                                          const std::string& scratch) {
  const bool standard = path == "-";
  const int fd = standard ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  InputText text(standard ? "standard input" : path, fd, -1);
  struct stat status {};
  if (fd < 0 || ::fstat(fd, &status) != 0) return text.Failed("open");
  if (S_ISDIR(status.st_mode)) return DataError(text.name_, " is a directory, not a text");
  if (S_ISREG(status.st_mode) && ::lseek(fd, 0, SEEK_CUR) == 0) {
    text.size_ = status.st_size;
  } else if (need_size) {
    CAPSTAN_RETURN_IF_ERROR(text.Spool(scratch));
  }
  return text;
}

InputText::InputText(InputText&& other) noexcept
    : name_(std::move(other.name_)), fd_(other.fd_), size_(other.size_) {
  other.fd_ = -1;
}

InputText::~InputText() {
  if (fd_ >= 0) ::close(fd_);
}

absl::Status InputText::Failed(const char* what) const {
  return DataError("cannot ", what, " ", name_, ": ", std::strerror(errno));
}

absl::Status InputText::Spool(const std::string& scratch) {
  std::string path = scratch + "/text-XXXXXX";
  const int to = ::mkostemp(path.data(), O_CLOEXEC);
  if (to < 0) return ResourceError("cannot create ", path, ": ", std::strerror(errno));
  ::unlink(path.c_str());
  int64_t size = 0;
  const absl::Status copied = Read(0, -1, [&](std::string_view piece, bool) -> absl::Status {
    for (size_t done = 0; done < piece.size();) {
      const ssize_t n = ::write(to, piece.data() + done, piece.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        return ResourceError("cannot keep standard input in ", scratch, ": ", std::strerror(errno));
      }
      done += static_cast<size_t>(n);
    }
    size += static_cast<int64_t>(piece.size());
    return absl::OkStatus();
  });
  ::close(fd_);
  fd_ = to;
  size_ = size;
  return copied;
}

absl::StatusOr<int64_t> InputText::CutBefore(double fraction) const {
  int64_t cut = size_ - static_cast<int64_t>(std::floor(static_cast<double>(size_) * fraction));
  char next[kLongestCharacter];
  const ssize_t n = ::pread(fd_, next, sizeof(next), cut);
  if (n < 0) return Failed("read");
  for (ssize_t i = 0; i < n && Continues(next[i]); ++i) ++cut;
  return cut;
}

absl::Status InputText::Read(int64_t begin, int64_t end, const Taker& take) {
  std::vector<char> piece(kPiece);
  int64_t at = begin;
  while (end < 0 || at < end) {
    const size_t want = end < 0 ? kPiece : std::min<size_t>(kPiece, static_cast<size_t>(end - at));
    const ssize_t n =
        size_ < 0 ? ::read(fd_, piece.data(), want) : ::pread(fd_, piece.data(), want, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("read");
    if (n == 0) {
      if (end < 0) break;
      return DataError(name_, " became shorter while it was read");
    }
    CAPSTAN_RETURN_IF_ERROR(take({piece.data(), static_cast<size_t>(n)}, false));
    at += n;
  }
  return take({}, true);
}

}  // namespace capstan
