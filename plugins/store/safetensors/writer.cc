#include "plugins/store/safetensors/writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>

#include "plugins/store/safetensors/bundle.h"
#include "sdk/error.h"

namespace capstan::safetensors {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kTextAllowance = 1 << 20;  // room for the text files and the directory
constexpr std::uint64_t kWriteBackEvery = 64 << 20;
constexpr std::uint64_t kStagingLimit = 512 << 20;
constexpr std::uint64_t kPostponedLimit = 8 << 20;
constexpr std::uint64_t kLeastMapped =
    64 << 10;  // a mapping costs more than to write this in one call

std::string size_text(std::uint64_t bytes) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f MB", static_cast<double>(bytes) / 1e6);
  return buffer;
}

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// All blocks are there, so that a store into a mapping cannot fail for want of one.
bool has_its_space(const sdk::File& file) {
  struct stat status;
  return ::fstat(file.fd(), &status) == 0 && static_cast<std::uint64_t>(status.st_blocks) * 512 >=
                                                 static_cast<std::uint64_t>(status.st_size);
}

// An empty directory is a place made ready for the bundle; rename replaces it.
bool is_taken(const std::string& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) return false;
  std::error_code error;
  return !S_ISDIR(status.st_mode) || !fs::is_empty(path, error) || error;
}

}  // namespace

char* Mapping::at(const sdk::File& file, std::uint64_t begin, std::uint64_t end) {
  if (memory_ != nullptr && fd_ == file.fd() && begin_ == begin && end_ == end) {
    return static_cast<char*>(memory_) + before_;
  }
  clear();
  before_ = begin % static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  void* const mapped = ::mmap(nullptr, before_ + end - begin, PROT_READ | PROT_WRITE, MAP_SHARED,
                              file.fd(), static_cast<off_t>(begin - before_));
  if (mapped == MAP_FAILED) return nullptr;
  // No pages ahead of those asked for: beyond the stretch another process may write directly.
  ::madvise(mapped, before_ + end - begin, MADV_RANDOM);
  memory_ = mapped;
  fd_ = file.fd();
  begin_ = begin;
  end_ = end;
  return static_cast<char*>(memory_) + before_;
}

void Mapping::clear() {
  if (memory_ != nullptr) ::munmap(memory_, before_ + end_ - begin_);
  memory_ = nullptr;
}

BundleWriter::BundleWriter(std::string path, const std::vector<DeclaredTensor>& tensors,
                           WriterOptions options)
    : path_(without_trailing_slash(std::move(path))),
      parent_(sdk::parent_directory(path_)),
      options_(options) {
  check_file_name("the bundle's name", sdk::base_name(path_));
  if (is_taken(path_)) {
    throw sdk::usage_error(
        sdk::text(sdk::quote(path_), " already exists; remove it or choose another place"));
  }
  lay_out(tensors);
  sdk::make_directories(parent_);
  check_space();
  try {
    create_temporary();
    create_files();
  } catch (...) {
    remove_temporary();
    throw;
  }
}

BundleWriter::BundleWriter(Joined joined, const std::vector<DeclaredTensor>& tensors,
                           WriterOptions options)
    : temporary_(std::move(joined.ticket)), options_(options), shared_(true), joined_(true) {
  lay_out(tensors);
  open_files();
}

BundleWriter::~BundleWriter() { remove_temporary(); }

const std::string& BundleWriter::share() {
  shared_ = true;
  for (GroupFile& group : files_) group.takes_mappings = has_its_space(group.file);
  temporary_ = fs::absolute(temporary_).string();
  return temporary_;
}

void BundleWriter::lay_out(const std::vector<DeclaredTensor>& tensors) {
  std::unordered_map<std::string, std::size_t> groups;
  for (const DeclaredTensor& tensor : tensors) {
    check_file_name("group", tensor.group);
    const std::string what =
        sdk::text("tensor ", sdk::quote(tensor.name), " of group ", sdk::quote(tensor.group));
    if (tensor.name == "__metadata__") {
      throw sdk::usage_error(what + ": safetensors keeps this name for itself; use another");
    }
    const Dtype* dtype = find_dtype(tensor.dtype);
    if (dtype == nullptr) {
      throw sdk::usage_error(sdk::text(what, " has a dtype (code ", int{tensor.dtype.code}, ", ",
                                       int{tensor.dtype.bits}, " bits) that safetensors cannot ",
                                       "hold; use one of ", known_dtypes()));
    }
    if (tensor.shape.size() > kMaxDims) {
      throw sdk::usage_error(sdk::text(what, " has ", tensor.shape.size(), " dims; at most ",
                                       kMaxDims, " can be stored"));
    }
    tensor_bytes(tensor.shape, dtype->size, what);  // refuses what overflows
    const auto [group, fresh] = groups.try_emplace(tensor.group, files_.size());
    if (fresh) {
      files_.emplace_back();
      files_.back().group = tensor.group;
      files_.back().header.metadata = {{"format", "pt"}};
    }
    TensorEntry entry;
    entry.name = tensor.name;
    entry.dtype = dtype;
    entry.shape = tensor.shape;
    files_[group->second].header.tensors.push_back(std::move(entry));
  }
  for (std::size_t f = 0; f < files_.size(); ++f) {
    files_[f].header_bytes = build_header(files_[f].header);
    const std::vector<TensorEntry>& entries = files_[f].header.tensors;
    for (std::size_t e = 0; e < entries.size(); ++e) {
      if (!index_.emplace(key(files_[f].group, entries[e].name), targets_.size()).second) {
        throw sdk::usage_error(sdk::text("tensor ", sdk::quote(entries[e].name), " of group ",
                                         sdk::quote(files_[f].group),
                                         " is declared twice; give each its own name"));
      }
      Target target;
      target.file = f;
      target.entry = e;
      target.elements = entries[e].bytes() / entries[e].dtype->size;
      targets_.push_back(std::move(target));
    }
  }
}

void BundleWriter::check_space() const {
  std::uint64_t needed = kTextAllowance;
  std::uint64_t largest = 0;
  for (const GroupFile& group : files_) {
    const std::uint64_t data = group.header.tensors.empty() ? 0 : group.header.tensors.back().end;
    needed += group.header.data_start + data;
    largest = std::max(largest, group.header.data_start + data);
  }
  struct statvfs status;
  if (::statvfs(parent_.c_str(), &status) != 0) {
    throw sdk::system_error("look at the disk of", parent_, errno);
  }
  const auto blocks = ::geteuid() == 0 ? status.f_bfree : status.f_bavail;
  const std::uint64_t available = static_cast<std::uint64_t>(blocks) * status.f_frsize;
  if (needed > available) {
    throw sdk::resource_error(sdk::text("disk full: ", sdk::quote(path_), " needs ",
                                        size_text(needed), ", and the disk of ",
                                        sdk::quote(parent_), " has ", size_text(available),
                                        " free; free some space, keep fewer checkpoints or choose "
                                        "another disk"));
  }
  // Past this limit the kernel would end the process with SIGXFSZ.
  struct rlimit limit;
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      largest > limit.rlim_cur) {
    throw sdk::resource_error(sdk::text("a file of ", sdk::quote(path_), " needs ",
                                        size_text(largest), ", and the file size limit is ",
                                        size_text(limit.rlim_cur),
                                        "; raise the limit (ulimit -f)"));
  }
}

void BundleWriter::create_temporary() {
  // Between mkdir and flock a concurrent clean may take the directory for a crashed writer's, so
  // the lock counts only if the locked directory is still the one of that name.
  for (int attempt = 0; attempt < 16; ++attempt) {
    const std::string candidate = parent_ + "/" + sdk::temporary_name(sdk::base_name(path_));
    if (::mkdir(candidate.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      throw sdk::system_error("create directory", candidate, errno);
    }
    temporary_ = candidate;
    lock_fd_ = ::open(candidate.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // Some network file systems have no locks on directories: go on without.
    const int locked = lock_fd_ < 0                                ? ENOENT
                       : ::flock(lock_fd_, LOCK_EX | LOCK_NB) == 0 ? 0
                                                                   : errno;
    const bool lockless = locked == ENOLCK || locked == EBADF || locked == EOPNOTSUPP;
    struct stat mine, named;
    if ((locked == 0 || lockless) && ::fstat(lock_fd_, &mine) == 0 &&
        ::stat(candidate.c_str(), &named) == 0 && mine.st_ino == named.st_ino) {
      return;
    }
    remove_temporary();
  }
  throw sdk::resource_error(sdk::text("cannot create a temporary directory in ",
                                      sdk::quote(parent_), ": another process keeps removing it"));
}

void BundleWriter::create_files() {
  for (GroupFile& group : files_) {
    group.file = sdk::File::create(temporary_ + "/" + group.group + kSuffix);
    const std::uint64_t data = group.header.tensors.empty() ? 0 : group.header.tensors.back().end;
    group.file.reserve(group.header.data_start + data);
    group.file.write(group.header_bytes.data(), group.header_bytes.size(), 0);
    group.header_bytes = {};
    if (options_.direct) group.direct = std::make_unique<DirectFile>(group.file);
  }
}

// The leader has written the headers: equal ones mean that both lay out the same tensors.
void BundleWriter::open_files() {
  for (GroupFile& group : files_) {
    const std::string path = temporary_ + "/" + group.group + kSuffix;
    group.file = sdk::File::open_to_change(path);
    std::string header(group.header_bytes.size(), '\0');
    const bool fits = group.file.size() >= header.size();
    if (fits) group.file.read(header.data(), header.size(), 0);
    if (!fits || header != group.header_bytes) {
      throw sdk::bug_error(sdk::text(sdk::quote(path),
                                     " was begun for other tensors than this "
                                     "process declares; all must declare the same"));
    }
    group.header_bytes = {};
    group.takes_mappings = has_its_space(group.file);
    if (options_.direct) group.direct = std::make_unique<DirectFile>(group.file);
  }
}

void BundleWriter::settle_files() {
  direct_.finish();
  write_postponed();
  mapping_.clear();
  for (GroupFile& group : files_) {
    if (options_.fsync) group.file.sync();
    group.file.finish();
  }
}

void BundleWriter::remove_temporary() noexcept {
  direct_.stop();
  files_.clear();
  if (!temporary_.empty() && !joined_) {
    std::error_code error;
    fs::remove_all(temporary_, error);  // what is left, clean_temporaries removes
    temporary_.clear();
  }
  if (lock_fd_ >= 0) ::close(lock_fd_);
  lock_fd_ = -1;
}

// Keeps account of what was written; false when the box is empty.
bool BundleWriter::record(Target& target, const TensorEntry& entry, const Box& box) {
  const std::uint64_t volume = box_volume(box);
  if (volume == 0) return false;
  for (const Box& other : target.written) {
    if (box == other) return true;
    if (boxes_overlap(box, other)) {
      throw sdk::bug_error(sdk::text("tensor ", sdk::quote(entry.name), ": slice ", box_text(box),
                                     " overlaps slice ", box_text(other),
                                     ", written before; write disjoint slices"));
    }
  }
  target.written.push_back(box);
  target.elements_written += volume;
  return true;
}

void BundleWriter::put(const std::string& group, const std::string& name, const Box& box,
                       const void* data) {
  const auto found = index_.find(key(group, name));
  if (found == index_.end()) {
    throw sdk::bug_error(sdk::text("tensor ", sdk::quote(name), " of group ", sdk::quote(group),
                                   " was not declared when the bundle was begun; declare it"));
  }
  Target& target = targets_[found->second];
  GroupFile& file = files_[target.file];
  const TensorEntry& entry = file.header.tensors[target.entry];
  if (const std::string problem = box_problem(entry.shape, box); !problem.empty()) {
    throw sdk::bug_error(sdk::text("a slice of tensor ", sdk::quote(name), " of shape ",
                                   shape_text(entry.shape), " ", problem, "; stay inside it"));
  }
  if (!record(target, entry, box)) return;
  const Runs runs = box_runs(entry.shape, box, entry.dtype->size);
  const auto* bytes = static_cast<const char*>(data);
  if (!stage(target, entry, runs)) {
    scatter(file, entry, runs, bytes);
    return;
  }
  for (RunCursor cursor(runs); !cursor.done(); cursor.next()) {
    std::memcpy(target.staged.data() + cursor.run_offset(), bytes + cursor.slice_offset(),
                runs.run_bytes);
  }
  if (target.elements_written < target.elements) return;
  write_run(file, target.staged.data(), entry.bytes(), file.header.data_start + entry.begin);
  staged_bytes_ -= entry.bytes();
  spare_ = std::move(target.staged);
  target.staged = {};
}

// Column ranges, as tensor parallelism brings them, would be many small writes that each touch part
// of a page. So a tensor whose first slice comes in several runs is put together in memory and
// written once, as long as all such tensors together stay within kStagingLimit.
bool BundleWriter::stage(Target& target, const TensorEntry& entry, const Runs& runs) {
  if (shared_) return false;  // the rest of the tensor is another process's to write
  if (!target.staged.empty()) return true;
  if (runs.run_count == 1 || target.written.size() > 1) return false;
  if (target.elements_written == target.elements) return false;  // the same box again
  if (entry.bytes() > kStagingLimit - staged_bytes_) return false;
  target.staged = std::move(spare_);
  spare_ = {};
  target.staged.resize(entry.bytes());
  staged_bytes_ += entry.bytes();
  return true;
}

void BundleWriter::write_run(GroupFile& group, const char* data, std::uint64_t size,
                             std::uint64_t offset) {
  const DirectWriter::Left left = group.direct == nullptr
                                      ? DirectWriter::Left{size, 0}
                                      : direct_.write(*group.direct, data, size, offset);
  write_cached(group, data, left.head, offset);
  write_cached(group, data + size - left.tail, left.tail, offset + size - left.tail);
}

void BundleWriter::write_cached(GroupFile& group, const char* data, std::uint64_t size,
                                std::uint64_t offset) {
  if (size == 0) return;
  if (shared_ && size < kLeastMapped) {
    if (postponed_bytes_.size() + size > kPostponedLimit) write_postponed();
    postponed_.push_back({&group, offset, size});
    postponed_bytes_.insert(postponed_bytes_.end(), data, data + size);
    return;
  }
  group.file.write(data, size, offset);
  written(group, size);
}

void BundleWriter::write_postponed() {
  const char* data = postponed_bytes_.data();
  for (const Postponed& p : postponed_) {
    p.group->file.write(data, p.size, p.offset);
    data += p.size;
  }
  postponed_.clear();
  postponed_bytes_.clear();
}

void BundleWriter::written(GroupFile& group, std::uint64_t size) {
  group.not_started += size;
  if (options_.fsync && group.not_started >= kWriteBackEvery) {
    // Starts the disk early, so that commit does not wait for all of it. A hint: failure is no
    // loss.
    ::sync_file_range(group.file.fd(), 0, 0, SYNC_FILE_RANGE_WRITE);
    group.not_started = 0;
  }
}

// Through a mapping; false where that is not possible. What comes next is often of the same tensor, whose
// pages are there then.
bool BundleWriter::scatter_mapped(GroupFile& group, const TensorEntry& entry, const Runs& runs,
                                  const char* data) {
  if (!group.takes_mappings || runs.span < kLeastMapped || runs.run_bytes >= kLeastMapped)
    return false;
  const std::uint64_t base = group.header.data_start + entry.begin;
  char* const to = mapping_.at(group.file, base, base + entry.bytes());
  if (to == nullptr) return false;
  for (RunCursor cursor(runs); !cursor.done(); cursor.next()) {
    std::memcpy(to + cursor.run_offset(), data + cursor.slice_offset(), runs.run_bytes);
  }
  written(group, runs.run_bytes * runs.run_count);
  return true;
}

void BundleWriter::scatter(GroupFile& group, const TensorEntry& entry, const Runs& runs,
                           const char* data) {
  // A file takes one write call at a time, whoever makes it, which many short ones wait for; stores into
  // mappings go side by side.
  if (shared_ && scatter_mapped(group, entry, runs, data)) return;
  const std::uint64_t base = group.header.data_start + entry.begin;
  RunCursor cursor(runs);
  // Between the runs may lie what another process is writing.
  if (shared_ || !use_windows(runs)) {
    for (; !cursor.done(); cursor.next()) {
      write_run(group, data + cursor.slice_offset(), runs.run_bytes, base + cursor.run_offset());
    }
    return;
  }
  direct_.finish();  // what is read back may still be on its way
  window_.resize(kWindow);
  while (!cursor.done()) {
    // What lies between the runs may hold other slices: read, change, write back.
    const std::uint64_t begin = cursor.run_offset();
    const std::uint64_t bytes = std::min(kWindow, runs.first + runs.span - begin);
    group.file.read(window_.data(), bytes, base + begin);
    std::uint64_t end = begin;
    for (; !cursor.done() && cursor.run_offset() + runs.run_bytes <= begin + bytes; cursor.next()) {
      std::memcpy(window_.data() + (cursor.run_offset() - begin), data + cursor.slice_offset(),
                  runs.run_bytes);
      end = cursor.run_offset() + runs.run_bytes;
    }
    write_cached(group, window_.data(), end - begin, base + begin);
  }
}

void BundleWriter::put_text(const std::string& name, std::string_view text) {
  check_file_name("text file", name);
  const std::string suffix = kSuffix;
  if (name.size() >= suffix.size() && name.substr(name.size() - suffix.size()) == suffix) {
    throw sdk::usage_error(
        sdk::text("text file ", sdk::quote(name), " has the name of a tensor file; use another"));
  }
  if (!texts_.insert(name).second) {
    throw sdk::usage_error(
        sdk::text("text file ", sdk::quote(name), " was written before; write each once"));
  }
  sdk::File file = sdk::File::create(temporary_ + "/" + name);
  file.write(text.data(), text.size(), 0);
  if (options_.fsync) file.sync();
  file.finish();
}

void BundleWriter::check_complete() const {
  if (shared_) return;
  for (const Target& target : targets_) {
    if (target.elements_written == target.elements) continue;
    const GroupFile& file = files_[target.file];
    throw sdk::bug_error(sdk::text("tensor ", sdk::quote(file.header.tensors[target.entry].name),
                                   " of group ", sdk::quote(file.group), " has ",
                                   target.elements_written, " of its ", target.elements,
                                   " elements written; write every slice before the commit"));
  }
}

void BundleWriter::commit() {
  try {
    check_complete();
    settle_files();
    if (joined_) return;
    if (options_.fsync) sdk::sync_directory(temporary_);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      if (errno == ENOTEMPTY || errno == EEXIST) {
        throw sdk::usage_error(sdk::text(sdk::quote(path_),
                                         " was created by someone else meanwhile; remove it or "
                                         "choose another place"));
      }
      throw sdk::system_error("rename the finished bundle to", path_, errno);
    }
  } catch (...) {
    remove_temporary();
    throw;
  }
  temporary_.clear();
  remove_temporary();
  if (options_.fsync) sdk::sync_directory(parent_);
}

}  // namespace capstan::safetensors
