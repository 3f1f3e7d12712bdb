#include "plugins/tracker/jsonl/log_file.h"

#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <string_view>

#include "plugins/tracker/jsonl/record.h"
#include "sdk/error.h"

namespace capstan::jsonl {
namespace {

bool exists(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0;
}

std::string read_whole(const std::string& path) {
  const sdk::File file = sdk::File::open_to_read(path);
  std::string content(file.size(), '\0');
  file.read(content.data(), content.size(), 0);
  return content;
}

void replace(const std::string& path, const std::string& content) {
  const std::string parent = sdk::parent_directory(path);
  const std::string temporary = parent + "/" + sdk::temporary_name(sdk::base_name(path));
  try {
    sdk::File file = sdk::File::create(temporary);
    file.write(content.data(), content.size(), 0);
    file.sync();
    file.finish();
    sdk::rename_path(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sdk::sync_directory(parent);
}

// A thread that takes signals would run the host's handlers where it does not expect them.
std::thread start_without_signals(auto body) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(body);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace

Trimmed trim_log(const std::string& path, std::int64_t resume_step) {
  Trimmed trimmed;
  if (!exists(path)) return trimmed;
  const std::string content = read_whole(path);
  std::string kept;
  kept.reserve(content.size());
  std::string_view rest = content;
  while (!rest.empty()) {
    const std::size_t newline = rest.find('\n');
    const std::string_view line = rest.substr(0, newline);
    const auto step = newline == std::string_view::npos ? std::nullopt : line_step(line);
    if (!step) {
      ++trimmed.unreadable;
    } else if (*step > resume_step) {
      ++trimmed.later;
    } else {
      kept += line;
      kept += '\n';
    }
    rest.remove_prefix(newline == std::string_view::npos ? rest.size() : newline + 1);
  }
  if (kept.size() != content.size()) replace(path, kept);
  return trimmed;
}

void set_aside_log(const std::string& path) {
  if (!exists(path)) return;
  sdk::rename_path(path, path + ".old");
  sdk::sync_directory(sdk::parent_directory(path));
}

void refuse_used_log(const std::string& path) {
  if (!exists(path)) return;
  const sdk::File file = sdk::File::open_to_read(path);
  if (::flock(file.fd(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  throw sdk::usage_error(sdk::text(sdk::quote(path), " is being written by another tracker; give ",
                                   "each [[tracker]] its own file"));
}

LogWriter::LogWriter(const std::string& path, std::size_t queue_lines, std::uint64_t fsync_every)
    : queue_lines_(queue_lines),
      fsync_every_(fsync_every),
      file_(sdk::File::open_to_write(path)),
      size_(file_.size()) {
  ::flock(file_.fd(), LOCK_EX | LOCK_NB);  // for refuse_used_log; where there are no locks, none
  thread_ = start_without_signals([this] { run(); });
}

LogWriter::~LogWriter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void LogWriter::add(std::string line) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= queue_lines_) {
      ++counts_.dropped;
      return;
    }
    queue_.push_back(std::move(line));
  }
  work_.notify_one();
}

void LogWriter::flush() {
  std::unique_lock lock(mutex_);
  const std::uint64_t mine = ++flushes_asked_;
  work_.notify_one();
  done_.wait(lock, [&] { return flushes_done_ >= mine; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

WriterCounts LogWriter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void LogWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return ending_ || !queue_.empty() || flushes_asked_ > flushes_done_; });
    const std::uint64_t flushes = flushes_asked_;
    const bool syncing = flushes > flushes_done_;
    const std::uint64_t lines = queue_.size();
    if (lines == 0 && !syncing) return;  // ending, and all is written
    std::string batch;
    for (const std::string& line : queue_) batch += line;
    queue_.clear();
    lock.unlock();
    std::exception_ptr failure;
    bool written = false;
    try {
      write_batch(batch, lines);
      written = true;
      if (syncing || (fsync_every_ > 0 && unsynced_ >= fsync_every_)) {
        file_.sync();
        unsynced_ = 0;
      }
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (!written) counts_.lost += lines;
    if (failure && !failure_) failure_ = failure;
    flushes_done_ = flushes;
    done_.notify_all();
  }
}

// All of the batch or none: a line is never left half written while the process lives.
void LogWriter::write_batch(const std::string& batch, std::uint64_t lines) {
  try {
    file_.write(batch.data(), batch.size(), size_);
  } catch (...) {
    file_.truncate(size_);
    throw;
  }
  size_ += batch.size();
  unsynced_ += lines;
}

}  // namespace capstan::jsonl
