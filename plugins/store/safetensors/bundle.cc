#include "plugins/store/safetensors/bundle.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "sdk/error.h"
#include "sdk/file.h"

namespace capstan::safetensors {
namespace {

namespace fs = std::filesystem;

bool is_directory(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_complete(const std::string& path) {
  struct stat status;
  return is_directory(path) && ::stat((path + "/" + kMarker).c_str(), &status) == 0 &&
         S_ISREG(status.st_mode);
}

bool is_temporary(const std::string& name) { return name.rfind(sdk::kTemporaryPrefix, 0) == 0; }

// Names of the directories under `directory`; empty when it does not exist.
std::vector<std::string> directories_under(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (is_directory(it->path().string())) names.push_back(it->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw sdk::system_error("list directory", directory, error.value());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw sdk::system_error("remove", path, error.value());
}

// True when a living writer holds the lock of this temporary.
bool is_busy(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool busy = ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return busy;
}

}  // namespace

bool use_windows(const Runs& runs) {
  return runs.run_count > 1 && runs.run_bytes < kShortRun &&
         runs.span / runs.run_count < 2 * kShortRun;
}

void check_file_name(const std::string& what, const std::string& name) {
  const bool plain = !name.empty() && name.front() != '.' && name.size() <= 200 &&
                     std::all_of(name.begin(), name.end(), [](char c) {
                       return c != '/' && static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
                     });
  if (!plain) {
    throw sdk::usage_error(sdk::text(what, " ", sdk::quote(name),
                                     " cannot be a file name; use 1 to 200 characters without a "
                                     "slash, a leading dot or control characters"));
  }
}

std::vector<std::string> list_bundles(const std::string& directory) {
  std::vector<std::string> names;
  for (std::string& name : directories_under(directory)) {
    if (!is_temporary(name) && is_complete(directory + "/" + name))
      names.push_back(std::move(name));
  }
  return names;
}

void remove_bundle(const std::string& path) {
  if (!is_complete(path)) {
    throw sdk::usage_error(sdk::text(sdk::quote(path), " is not a complete bundle: it has no ",
                                     kMarker, "; nothing was removed"));
  }
  const std::string parent = sdk::parent_directory(path);
  const std::string trash = parent + "/" + sdk::temporary_name("removed-" + sdk::base_name(path));
  sdk::rename_path(path, trash);
  sdk::sync_directory(parent);
  remove_tree(trash);
  sdk::sync_directory(parent);
}

void clean_temporaries(const std::string& directory) {
  bool removed = false;
  for (const std::string& name : directories_under(directory)) {
    const std::string path = directory + "/" + name;
    if (!is_temporary(name) || is_busy(path)) continue;
    remove_tree(path);
    removed = true;
  }
  if (removed) sdk::sync_directory(directory);
}

}  // namespace capstan::safetensors
