// The connections of one group, and transfers over them.
#ifndef CAPSTAN_PLUGINS_COMM_GLOO_WIRES_H_
#define CAPSTAN_PLUGINS_COMM_GLOO_WIRES_H_

#include <gloo/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "plugins/comm/gloo/alarm.h"
#include "plugins/comm/gloo/rendezvous.h"
#include "sdk/comm.h"

namespace capstan::gloo_comm {

// Seconds from now as a point in time; negative: for ever, as far as anyone will see.
Clock::time_point deadline_after(double seconds);

// A well-mixed function of its arguments, for slots: Gloo matches a receive with the send of the same
// slot, so what must not meet gets different ones.
uint64_t mix(uint64_t a, uint64_t b, uint64_t c = 0);

// What a rank says last on a connection: why it gives up, or that it leaves.
struct Farewell {
  int32_t code = 0;  // 0: leaves without a failure
  int32_t culprit = -1;
  uint64_t position = 0;  // leaves: after so many collectives
  std::array<char, 368> text{};
};

// One rank's connections to the other members. [any thread, after connect]
class Wires {
 public:
  Wires(std::vector<int32_t> ranks, size_t index) : ranks_(std::move(ranks)), index_(index) {}

  // Blocks with the job's deadline and `timeout_s`. Both ends prove that they are of the job. Throws.
  void connect(const sdk::Bootstrap& bootstrap, const std::string& prefix,
               std::shared_ptr<::gloo::transport::Device> device, double timeout_s);

  size_t index() const { return index_; }
  size_t size() const { return ranks_.size(); }
  int32_t rank(size_t index) const { return ranks_[index]; }  // of the world

  std::unique_ptr<::gloo::transport::UnboundBuffer> buffer(const void* memory, size_t bytes) {
    return context_->createUnboundBuffer(const_cast<void*>(memory), bytes);
  }

  // The rank a thread waits for in Transfers::wait, -1 none.
  int32_t waiting_for() const { return waiting_for_.load(std::memory_order_relaxed); }
  void set_waiting_for(int32_t rank) { waiting_for_.store(rank, std::memory_order_relaxed); }

  // Passes on the farewells of the others as they come; returns when all have come, or after cut or
  // leave. For a thread of its own, since a rank must hear of a failure while it waits for another.
  void listen(const std::function<void(size_t from, const Farewell&)>& heard);
  // The farewell of a member, given a moment to arrive.
  std::optional<Farewell> farewell_of(size_t index);

  // Says farewell to all, then ends every transfer, here and at the peers.
  void cut(const Farewell& farewell);
  // Says that this rank leaves, waits until all others have said so or `patience_s` has passed, and
  // closes: what is still on its way to them arrives.
  void leave(const Farewell& farewell, double patience_s);

 private:
  void prove(const Proofs& proofs, Clock::time_point deadline);
  void say(const Farewell& farewell);
  void hear_from_any();

  std::vector<int32_t> ranks_;
  size_t index_;
  std::shared_ptr<::gloo::Context> context_;
  std::atomic<int32_t> waiting_for_{-1};
  std::atomic<bool> has_said_{false};
  Farewell said_, arriving_;
  std::vector<std::unique_ptr<::gloo::transport::UnboundBuffer>> saying_;
  std::unique_ptr<::gloo::transport::UnboundBuffer> hearing_;
  std::mutex heard_lock_;
  std::condition_variable heard_changed_;
  std::vector<std::optional<Farewell>> heard_;  // by member
};

// Sends and receives that are waited for together.
class Transfers {
 public:
  explicit Transfers(Wires& wires) : wires_(wires) {}

  // Zero bytes: nothing.
  void send(size_t to, uint64_t slot, const void* memory, size_t bytes);
  void receive(size_t from, uint64_t slot, void* memory, size_t bytes);
  // Until all are through. Throws PEER_LOST, with the rank whose connection ended. Gloo ends all
  // connections when the deadline passes.
  void wait(Clock::time_point deadline);
  // The same; false once the deadline has passed, with the connections intact. May be called again.
  bool wait(Clock::time_point deadline, Alarm& alarm);

 private:
  struct One {
    size_t peer;
    std::unique_ptr<::gloo::transport::UnboundBuffer> buffer;
  };
  Wires& wires_;
  std::vector<One> sends_, receives_;
};

}  // namespace capstan::gloo_comm

#endif  // CAPSTAN_PLUGINS_COMM_GLOO_WIRES_H_
