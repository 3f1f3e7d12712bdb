#include "plugins/store/safetensors/direct.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

namespace capstan::safetensors {
namespace {

// Of file offsets, lengths and addresses: a page, so that no page is written both ways. Disks ask for
// this or less; one that asks for more refuses the first write, and the page cache takes over.
const std::uint64_t kBlock =
    std::max<std::uint64_t>(4096, static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));

}  // namespace

void DirectFile::write_blocks(const char* data, std::uint64_t size, std::uint64_t offset) {
  while (size > 0 && usable_) {
    const ssize_t n = ::pwrite(file_.fd(), data, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EINVAL && errno != EOPNOTSUPP) {
      throw sdk::system_error("write", file_.path(), errno);
    }
    if (n < 0 || static_cast<std::uint64_t>(n) % kBlock != 0) {
      usable_ = false;
      break;
    }
    data += n;
    offset += static_cast<std::uint64_t>(n);
    size -= static_cast<std::uint64_t>(n);
  }
  cached_.write(data, size, offset);
}

void DirectWriter::stop() noexcept {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    jobs_.clear();
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// False when there is no memory or no thread to be had: the caller does without.
bool DirectWriter::start() {
  if (thread_.joinable()) return true;
  while (empty_.size() < kPieces) {
    Piece piece(static_cast<char*>(std::aligned_alloc(kBlock, kPiece)));
    if (piece == nullptr) return false;
    empty_.push_back(std::move(piece));
  }
  sigset_t all, before;  // signals are for the process's own threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::exception&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread_.joinable();
}

DirectWriter::Left DirectWriter::write(DirectFile& file, const char* data, std::uint64_t size,
                                       std::uint64_t offset) {
  if (size < kLeast || !file.usable() || !start()) return {size, 0};
  const std::uint64_t head = (kBlock - offset % kBlock) % kBlock;
  const std::uint64_t tail = (offset + size) % kBlock;
  for (std::uint64_t at = head; at < size - tail;) {
    const std::uint64_t bytes = std::min(size - tail - at, kPiece);
    Piece piece = empty_piece();
    std::memcpy(piece.get(), data + at, bytes);
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back({&file, std::move(piece), bytes, offset + at});
    }
    changed_.notify_all();
    at += bytes;
  }
  return {head, tail};
}

void DirectWriter::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty() && !writing_; });
  rethrow();
}

DirectWriter::Piece DirectWriter::empty_piece() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !empty_.empty(); });
  rethrow();
  Piece piece = std::move(empty_.back());
  empty_.pop_back();
  return piece;
}

// Under the lock. The failure stays: a bundle that lacks a write never becomes whole.
void DirectWriter::rethrow() {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void DirectWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    writing_ = true;
    const bool failed = failure_ != nullptr;
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (!failed) job.file->write_blocks(job.data.get(), job.size, job.offset);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure != nullptr) failure_ = failure;
    empty_.push_back(std::move(job.data));
    writing_ = false;
    changed_.notify_all();
  }
}

}  // namespace capstan::safetensors
