#include "runtime/launch/rank_status.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/status.h"

namespace capstan {
namespace launch_internal {

// The launcher and its ranks are one binary, so the layout needs no more than a check.
constexpr uint64_t kMagic = 0x31706e6b72746373;
constexpr size_t kPageBytes = 8192;
constexpr size_t kMessageBytes = 7168;

struct alignas(64) Slot {
  std::atomic<int64_t> step;
  std::atomic<int32_t> microbatch, state;
  std::atomic<uint64_t> label[12];
};

enum FailureState : uint32_t { kNone = 0, kWriting = 1, kWritten = 2 };

struct StatusPage {
  uint64_t magic;
  std::atomic<uint64_t> writes;  // slot writes % 2 holds; 0: nothing was written
  std::atomic<double> deadline_s;
  std::atomic<uint64_t> awaited;  // writes at which it holds, and the rank: see Awaited
  Slot slots[2];
  std::atomic<uint32_t> failure_state;
  int32_t status_class, retryable, culprit;
  uint32_t message_bytes;
  char message[kMessageBytes];
};
static_assert(sizeof(StatusPage) <= kPageBytes);
static_assert(std::atomic<double>::is_always_lock_free);

void Unmap::operator()(StatusPage* page) const { ::munmap(page, bytes); }

}  // namespace launch_internal

namespace {

using launch_internal::kMessageBytes;
using launch_internal::kPageBytes;
using launch_internal::MappedPages;
using launch_internal::Slot;
using launch_internal::StatusPage;

constexpr auto kRelaxed = std::memory_order_relaxed;

StatusPage* PageOf(const MappedPages& pages, int rank) {
  return reinterpret_cast<StatusPage*>(reinterpret_cast<char*>(pages.get()) + rank * kPageBytes);
}

// 40 bits of writes, 24 of the rank.
constexpr int kRankBits = 24;
uint64_t Awaited(uint64_t writes, int32_t rank) {
  return writes << kRankBits | (static_cast<uint64_t>(rank) & ((uint64_t{1} << kRankBits) - 1));
}

absl::StatusOr<MappedPages> Map(int fd, size_t first, size_t count) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  const size_t bytes = count * kPageBytes;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd,
                        static_cast<off_t>(first * kPageBytes));
  if (memory == MAP_FAILED) {
    return ResourceError("cannot map the status pages of ", count,
                         " ranks: ", std::string(strerror(errno)));
  }
  return MappedPages(static_cast<StatusPage*>(memory), {bytes});
}

std::string TextOf(const std::array<uint64_t, 12>& words) {
  const char* bytes = reinterpret_cast<const char*>(words.data());
  return std::string(bytes, ::strnlen(bytes, OpLabel::kLongest));
}

// Longest prefix of at most `limit` bytes that does not cut a UTF-8 character.
size_t CutAt(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text.size();
  size_t n = limit;
  while (n > 0 && (static_cast<uint8_t>(text[n]) & 0xc0) == 0x80) --n;
  return n;
}

}  // namespace

OpLabel::OpLabel(std::string_view text) {
  std::memcpy(words_.data(), text.data(), CutAt(text, kLongest));
}

std::string OpLabel::Text() const { return TextOf(words_); }

// ---- the rank's side ---------------------------------------------------------------------------

absl::StatusOr<RankStatus> RankStatus::Open(const World& world) {
  RankStatus status;
  if (world.status_fd < 0) {
    CAPSTAN_ASSIGN_OR_RETURN(status.page_, Map(-1, 0, 1));
    return status;
  }
  struct stat file {};
  const size_t needed = (static_cast<size_t>(world.rank) + 1) * kPageBytes;
  if (::fstat(world.status_fd, &file) != 0 || static_cast<size_t>(file.st_size) < needed) {
    return UsageError("CAPSTAN_STATUS_FD = ", world.status_fd,
                      " is not the launcher's status memory; something between `capstan train "
                      "--ranks` and this rank closed it: start capstan without that wrapper");
  }
  CAPSTAN_ASSIGN_OR_RETURN(status.page_, Map(world.status_fd, world.rank, 1));
  ::fcntl(world.status_fd, F_SETFD, FD_CLOEXEC);
  if (status.page_->magic != launch_internal::kMagic) {
    return UsageError("CAPSTAN_STATUS_FD = ", world.status_fd,
                      " is the status memory of another version of capstan");
  }
  status.watched_ = true;
  status.writes_ = status.page_->writes.load(kRelaxed);
  if (status.writes_ == 0) {
    status.SetState(RankState::kStarting);
  } else {  // opened before: what it says still holds
    status.step_ = status.page_->slots[status.writes_ % 2].step.load(kRelaxed);
  }
  return status;
}

void RankStatus::Publish(const std::array<uint64_t, 12>& words, int32_t microbatch,
                         RankState state) {
  // The slot's words may not be seen before the write that took the slot out of use.
  std::atomic_thread_fence(std::memory_order_release);
  const uint64_t next = ++writes_;
  Slot& slot = page_->slots[next % 2];
  slot.step.store(step_, kRelaxed);
  slot.microbatch.store(microbatch, kRelaxed);
  slot.state.store(static_cast<int32_t>(state), kRelaxed);
  for (size_t i = 0; i < words.size(); ++i) slot.label[i].store(words[i], kRelaxed);
  page_->writes.store(next, std::memory_order_release);
}

void RankStatus::SetOp(const OpLabel& label, int32_t microbatch, RankState state) {
  Publish(label.words(), microbatch, state);
}

void RankStatus::SetState(RankState state) {
  const Slot& now = page_->slots[writes_ % 2];
  std::array<uint64_t, 12> words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = now.label[i].load(kRelaxed);
  Publish(words, writes_ == 0 ? -1 : now.microbatch.load(kRelaxed), state);
}

void RankStatus::SetAwaited(uint64_t writes, int32_t rank) {
  if (rank >= 0) page_->awaited.store(Awaited(writes, rank), kRelaxed);
}

uint64_t RankStatus::writes() const { return page_->writes.load(std::memory_order_acquire); }

void RankStatus::SetDeadline(double seconds) { page_->deadline_s.store(seconds, kRelaxed); }

void RankStatus::Fail(const absl::Status& status) {
  uint32_t none = launch_internal::kNone;
  if (status.ok() ||
      !page_->failure_state.compare_exchange_strong(none, launch_internal::kWriting)) {
    return;
  }
  const std::string_view message = ToStd(status.message());
  const size_t bytes = CutAt(message, kMessageBytes);
  page_->status_class = StatusClass(status);
  page_->retryable = IsRetryable(status) ? 1 : 0;
  page_->culprit = CulpritRank(status);
  page_->message_bytes = static_cast<uint32_t>(bytes);
  std::memcpy(page_->message, message.data(), bytes);
  page_->failure_state.store(launch_internal::kWritten, std::memory_order_release);
}

// ---- the launcher's side -----------------------------------------------------------------------

absl::StatusOr<StatusPages> StatusPages::Create(int ranks) {
  const int fd = ::memfd_create("capstan-status", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const auto bytes = static_cast<off_t>(static_cast<size_t>(ranks) * kPageBytes);
  // Sealed, so that no rank can cut the memory short under the launcher.
  if (fd < 0 || ::ftruncate(fd, bytes) != 0 ||
      ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const std::string reason = strerror(errno);
    if (fd >= 0) ::close(fd);
    return ResourceError("cannot make the status memory of ", ranks, " ranks: ", reason);
  }
  absl::StatusOr<MappedPages> pages = Map(fd, 0, ranks);
  if (!pages.ok()) {
    ::close(fd);
    return pages.status();
  }
  for (int r = 0; r < ranks; ++r) PageOf(*pages, r)->magic = launch_internal::kMagic;
  return StatusPages(fd, *std::move(pages));
}

StatusPages::StatusPages(StatusPages&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), pages_(std::move(other.pages_)) {}

StatusPages::~StatusPages() {
  if (fd_ >= 0) ::close(fd_);
}

RankSnapshot StatusPages::Read(int rank) const {
  const StatusPage& page = *PageOf(pages_, rank);
  RankSnapshot s;
  s.deadline_s = page.deadline_s.load(kRelaxed);
  std::array<uint64_t, 12> words;
  // A slot is written again only two writes later. Ops take longer than a copy of one, so that the first
  // attempts succeed; the bound is for a rank that does nothing but write, whose last copy will do.
  for (int attempt = 0; attempt < 100000; ++attempt) {
    s.writes = page.writes.load(std::memory_order_acquire);
    const Slot& slot = page.slots[s.writes % 2];
    s.step = slot.step.load(kRelaxed);
    s.microbatch = slot.microbatch.load(kRelaxed);
    s.state = static_cast<RankState>(slot.state.load(kRelaxed));
    for (size_t i = 0; i < words.size(); ++i) words[i] = slot.label[i].load(kRelaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (page.writes.load(kRelaxed) == s.writes) break;
  }
  s.op = TextOf(words);
  s.attached = s.writes != 0;
  if (!s.attached) s.step = s.microbatch = -1;
  const uint64_t awaited = page.awaited.load(kRelaxed);
  const auto whom = static_cast<int32_t>(awaited & Awaited(0, -1));
  if (s.state == RankState::kWaiting && awaited == Awaited(s.writes, whom)) s.waiting_for = whom;
  if (page.failure_state.load(std::memory_order_acquire) == launch_internal::kWritten) {
    s.failed = true;
    s.status_class = page.status_class;
    s.retryable = page.retryable != 0;
    s.culprit = page.culprit;
    s.message.assign(page.message, std::min<size_t>(page.message_bytes, kMessageBytes));
  }
  return s;
}

}  // namespace capstan
