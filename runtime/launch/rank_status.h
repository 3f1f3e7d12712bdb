// What a rank is doing, in memory that its launcher reads when something goes wrong: which step, which
// op, for whom it waits, and the failure it ended with. It outlives the rank, however the rank dies.
//
// Writing takes no lock, no call into the kernel and no clock: about 10 ns an op. A page is two slots
// and a counter that says which one holds; a rank killed in the middle of a write leaves the slot
// before it intact.
#ifndef CAPSTAN_RUNTIME_LAUNCH_RANK_STATUS_H_
#define CAPSTAN_RUNTIME_LAUNCH_RANK_STATUS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/launch/world.h"

namespace capstan {

enum class RankState : int32_t {
  kStarting = 0,
  kComputing = 1,
  kCommunicating = 2,  // in a collective or message, not known to wait for anybody
  kWaiting = 3,        // for another rank
  kFinishing = 4,      // last checkpoint, trackers
};

// The name of an op as SetOp copies it. Made once an op, when the step is compiled.
class OpLabel {
 public:
  static constexpr size_t kLongest = 95;  // bytes; what is longer is cut
  OpLabel() = default;
  explicit OpLabel(std::string_view text);
  const std::array<uint64_t, 12>& words() const { return words_; }
  std::string Text() const;

 private:
  std::array<uint64_t, 12> words_{};  // zero-terminated bytes
};

// A page as read at one moment.
struct RankSnapshot {
  bool attached = false;  // the rank has written to it
  uint64_t writes = 0;    // changes whenever the rank gets on
  RankState state = RankState::kStarting;
  int64_t step = -1;  // 0-based, -1: before the first
  int32_t microbatch = -1;
  int32_t waiting_for = -1;  // rank; -1: nobody, or not known whom
  std::string op;
  double deadline_s = 0;  // of the rank's waits; 0: not told yet
  bool failed = false;
  int32_t status_class = 0;
  bool retryable = false;
  int32_t culprit = -1;
  std::string message;
};

namespace launch_internal {
struct StatusPage;
struct Unmap {
  size_t bytes = 0;
  void operator()(StatusPage* page) const;
};
using MappedPages = std::unique_ptr<StatusPage, Unmap>;
}  // namespace launch_internal

// The page of this rank. [the thread that runs the steps, except where it says otherwise]
class RankStatus {
 public:
  // The launcher's page where it made one, otherwise memory that nobody reads. Opened again, the page
  // keeps what it says; one of the two may then write steps and ops.
  static absl::StatusOr<RankStatus> Open(const World& world);
  RankStatus(RankStatus&&) = default;
  RankStatus& operator=(RankStatus&&) = default;

  bool watched() const { return watched_; }

  void SetStep(int64_t step) { step_ = step; }  // takes effect with the next op or state
  void SetOp(const OpLabel& label, int32_t microbatch, RankState state = RankState::kComputing);
  void SetState(RankState state);  // the op stays

  // Whom this rank waits for, in case that it has written nothing since `writes` was read. [any thread]
  void SetAwaited(uint64_t writes, int32_t rank);
  uint64_t writes() const;  // [any thread]

  void SetDeadline(double seconds);       // [any thread]
  void Fail(const absl::Status& status);  // the first failure is kept [any thread]

 private:
  RankStatus() = default;
  void Publish(const std::array<uint64_t, 12>& words, int32_t microbatch, RankState state);

  launch_internal::MappedPages page_;
  bool watched_ = false;
  uint64_t writes_ = 0;
  int64_t step_ = -1;
};

// The pages of all ranks, the launcher's side. Anonymous memory: nothing is left behind.
class StatusPages {
 public:
  static absl::StatusOr<StatusPages> Create(int ranks);
  StatusPages(StatusPages&& other) noexcept;
  StatusPages& operator=(StatusPages&&) = delete;
  ~StatusPages();

  int fd() const { return fd_; }  // close-on-exec; a rank is to inherit it
  RankSnapshot Read(int rank) const;

 private:
  StatusPages(int fd, launch_internal::MappedPages pages) : fd_(fd), pages_(std::move(pages)) {}
  int fd_ = -1;
  launch_internal::MappedPages pages_;
};

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_RANK_STATUS_H_
