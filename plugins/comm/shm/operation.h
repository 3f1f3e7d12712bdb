// A prepared operation of this rank.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_OPERATION_H_
#define CAPSTAN_PLUGINS_COMM_SHM_OPERATION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "plugins/comm/common/request.h"
#include "plugins/comm/shm/home.h"
#include "plugins/comm/shm/plan.h"

namespace capstan::shm {

struct Operation {
  enum State : int {
    kIdle,    // never started
    kQueued,  // started; its slot or ring is still in use
    kFlying,  // peers can see it
    kDone,    // the memory is the caller's again
    kFailed,  // the group ended first, or its wait said so
  };

  Operation(OwnHome& home, comm::Request checked, size_t index, size_t members,
            uint32_t eager_limit);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  OperationRecord& record() const { return *record_; }
  const std::string& text() const { return text_; }
  bool in_flight() const {
    const int now = state.load();
    return now == kQueued || now == kFlying;
  }

  const comm::Request request;
  const size_t index, members;  // of the group
  uint64_t offset = 0, record_bytes = 0;
  uint64_t identity = 0, signature = 0;
  uint32_t flags = 0;    // kEager, kMapped
  uint64_t payload = 0;  // bytes this rank gives
  uint64_t largest = 0;  // bytes of the whole tensors, to choose by size

  std::atomic<int> state{kIdle};
  uint64_t sequence = 0;  // among the collectives of the group, while in flight
  bool ever_started = false;

  // Of the present flight, under `work`: one thread at a time plans, and copies where tiles are not
  // claimed one by one.
  std::timed_mutex work;
  std::shared_ptr<const Plan> plan;
  uint64_t planned = 0;  // sequence + 1 of the flight that `plan` is for
  // What others may ask about it.
  std::atomic<int> stage{0};        // phases of fetching that this rank has behind it
  std::atomic<bool> pulls{false};   // the plan is one of fetching
  std::atomic<uint32_t> wanted{0};  // units of work by all members until it can go on

  // Messages: the number of this start, and the place in the channel's order.
  uint32_t flight = 0;

 private:
  void write_record(OwnHome& home);

  std::string text_;
  OperationRecord* record_ = nullptr;
};

using OperationPtr = std::shared_ptr<Operation>;

// What a member gives to a collective of its own accord, item by item: contiguous bytes.
struct Given {
  const char* data;
  uint64_t bytes;
};
Given given(const comm::Request& request, size_t item, size_t index);

// Items in an eager payload begin at multiples of this.
constexpr uint64_t kPayloadAlignment = 16;
inline uint64_t padded(uint64_t bytes) {
  return (bytes + kPayloadAlignment - 1) / kPayloadAlignment * kPayloadAlignment;
}

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_OPERATION_H_
