#include "plugins/comm/gloo/wires.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>

#include <algorithm>
#include <cstring>

namespace capstan::gloo_comm {
namespace {

using sdk::text;
using std::chrono::milliseconds;

constexpr uint64_t kProofSlot = 1;
constexpr uint64_t kFarewellSlot = 2;
// A farewell takes a round trip between the threads of Gloo on both sides; a stopped peer never answers.
constexpr milliseconds kSayPatience{1000};
// When a connection has ended, a farewell that was said before has been received already, and needs only
// its thread to run.
constexpr milliseconds kHearPatience{500};

milliseconds until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  return std::max(left, milliseconds(1));
}

// Gloo's sentences begin with a place in its sources.
std::string words_of(const std::exception& error) {
  const std::string whole = error.what();
  const size_t end = whole.front() == '[' ? whole.find("] ") : std::string::npos;
  return end == std::string::npos ? whole : whole.substr(end + 2);
}

}  // namespace

Clock::time_point deadline_after(double seconds) {
  constexpr double kLong = 1e8;
  const double bounded = seconds < 0 ? kLong : std::min(seconds, kLong);
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

uint64_t mix(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = 0x9e3779b97f4a7c15u;
  for (const uint64_t word : {a, b, c}) {
    x = (x ^ word) * 0xff51afd7ed558ccdu;
    x ^= x >> 32;
    x *= 0xc4ceb9fe1a85ec53u;
    x ^= x >> 29;
  }
  return x;
}

void Wires::connect(const sdk::Bootstrap& bootstrap, const std::string& prefix,
                    std::shared_ptr<::gloo::transport::Device> device, double timeout_s) {
  const auto deadline = deadline_after(timeout_s);
  const Proofs proofs = exchange_proofs(bootstrap, prefix, index_, size());
  BootstrapStore store(bootstrap, prefix);
  auto context = std::make_shared<::gloo::rendezvous::Context>(static_cast<int>(index_),
                                                               static_cast<int>(size()));
  context->setTimeout(until(deadline));
  try {
    context->connectFullMesh(store, device);
  } catch (const sdk::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw sdk::Error(CAPSTAN_PEER_LOST, text("connecting failed: ", words_of(error)), true);
  }
  context_ = context;
  heard_.resize(size());
  hearing_ = buffer(&arriving_, sizeof arriving_);
  prove(proofs, deadline);
}

void Wires::prove(const Proofs& proofs, Clock::time_point deadline) {
  std::vector<Proof> shown(size());
  Transfers transfers(*this);
  for (size_t r = 0; r < size(); ++r) {
    if (r == index_) continue;
    transfers.receive(r, kProofSlot, shown[r].data(), sizeof(Proof));
    transfers.send(r, kProofSlot, proofs.to_show[r].data(), sizeof(Proof));
  }
  transfers.wait(deadline);
  for (size_t r = 0; r < size(); ++r) {
    if (r == index_ || shown[r] == proofs.to_expect[r]) continue;
    throw sdk::Error(
        CAPSTAN_PEER_LOST,
        text("the process that connected in the place of rank ", rank(r), " is not of this job"),
        true, rank(r));
  }
}

void Wires::hear_from_any() {
  std::vector<int> silent;
  for (size_t r = 0; r < size(); ++r) {
    if (r != index_ && !heard_[r]) silent.push_back(static_cast<int>(r));
  }
  hearing_->recv(silent, kFarewellSlot);
}

void Wires::listen(const std::function<void(size_t from, const Farewell&)>& heard) {
  for (size_t left = size() - 1; left > 0; --left) {
    int from = -1;
    try {
      hear_from_any();
      if (!hearing_->waitRecv(&from, until(deadline_after(-1)))) return;
    } catch (const std::exception&) {
      return;  // cut
    }
    Farewell farewell = arriving_;
    farewell.text.back() = '\0';
    {
      const std::lock_guard held(heard_lock_);
      heard_[static_cast<size_t>(from)] = farewell;
      heard_changed_.notify_all();
    }
    heard(static_cast<size_t>(from), farewell);
  }
}

std::optional<Farewell> Wires::farewell_of(size_t index) {
  std::unique_lock held(heard_lock_);
  heard_changed_.wait_for(held, kHearPatience, [&] { return heard_[index].has_value(); });
  return heard_[index];
}

// The first farewell stands.
void Wires::say(const Farewell& farewell) {
  if (has_said_.exchange(true)) return;
  said_ = farewell;
  saying_.resize(size());
  for (size_t r = 0; r < size(); ++r) {
    if (r == index_) continue;
    try {
      saying_[r] = buffer(&said_, sizeof said_);
      saying_[r]->send(static_cast<int>(r), kFarewellSlot);
    } catch (const std::exception&) {
      saying_[r].reset();  // this connection is gone already
    }
  }
  for (const auto& one : saying_) {
    if (one == nullptr) continue;
    try {
      one->waitSend(kSayPatience);
    } catch (const std::exception&) {
      continue;  // the peer will find the connection closed instead
    }
  }
}

void Wires::cut(const Farewell& farewell) {
  if (context_ == nullptr) return;
  say(farewell);
  hearing_->abortWaitRecv();
  // Gloo ends all transfers of a context when one wait of it runs out of time; closing the connections
  // alone would leave their waiters asleep. So one waits for what never comes: on the first connection
  // that still stands, since on the others the wait fails by itself.
  char byte = 0;
  for (size_t r = 0; r < size(); ++r) {
    if (r == index_) continue;
    try {
      const auto never = buffer(&byte, 1);
      never->recv(static_cast<int>(r), mix(kFarewellSlot, 0, 1));
      never->waitRecv(milliseconds(1));
    } catch (const std::exception&) {
      continue;
    }
  }
}

void Wires::leave(const Farewell& farewell, double patience_s) {
  if (context_ == nullptr) return;
  const auto deadline = deadline_after(patience_s);
  say(farewell);
  {
    std::unique_lock held(heard_lock_);
    heard_changed_.wait_until(held, deadline, [&] {
      return std::count_if(heard_.begin(), heard_.end(), [](auto& h) { return h.has_value(); }) ==
             static_cast<ptrdiff_t>(size()) - 1;
    });
  }
  hearing_->abortWaitRecv();
  context_->closeConnections();
}

void Transfers::send(size_t to, uint64_t slot, const void* memory, size_t bytes) {
  if (bytes == 0) return;
  sends_.push_back({to, wires_.buffer(memory, bytes)});
  try {
    sends_.back().buffer->send(static_cast<int>(to), slot);
  } catch (const std::exception& error) {
    throw sdk::Error(CAPSTAN_PEER_LOST, words_of(error), true, wires_.rank(to));
  }
}

void Transfers::receive(size_t from, uint64_t slot, void* memory, size_t bytes) {
  if (bytes == 0) return;
  receives_.push_back({from, wires_.buffer(memory, bytes)});
  try {
    receives_.back().buffer->recv(static_cast<int>(from), slot);
  } catch (const std::exception& error) {
    throw sdk::Error(CAPSTAN_PEER_LOST, words_of(error), true, wires_.rank(from));
  }
}

void Transfers::wait(Clock::time_point deadline) {
  const auto each = [&](std::vector<One>& list, auto&& wait_for) {
    for (One& one : list) {
      wires_.set_waiting_for(wires_.rank(one.peer));
      try {
        wait_for(*one.buffer);
      } catch (const std::exception& error) {
        throw sdk::Error(CAPSTAN_PEER_LOST, words_of(error), true, wires_.rank(one.peer));
      }
    }
    list.clear();
  };
  each(receives_, [&](auto& buffer) { buffer.waitRecv(until(deadline)); });
  each(sends_, [&](auto& buffer) { buffer.waitSend(until(deadline)); });
  wires_.set_waiting_for(-1);
}

bool Transfers::wait(Clock::time_point deadline, Alarm& alarm) {
  const auto each = [&](std::vector<One>& list, auto&& wait_for, auto&& wake) {
    while (!list.empty()) {
      One& one = list.back();
      try {
        const Alarm::Set set(alarm, deadline, [&] { wake(*one.buffer); });
        if (!wait_for(*one.buffer)) return false;
      } catch (const std::exception& error) {
        throw sdk::Error(CAPSTAN_PEER_LOST, words_of(error), true, wires_.rank(one.peer));
      }
      list.pop_back();
    }
    return true;
  };
  const auto far = until(deadline_after(-1));
  return each(
             receives_, [&](auto& buffer) { return buffer.waitRecv(far); },
             [](auto& buffer) { buffer.abortWaitRecv(); }) &&
         each(
             sends_, [&](auto& buffer) { return buffer.waitSend(far); },
             [](auto& buffer) { buffer.abortWaitSend(); });
}

}  // namespace capstan::gloo_comm
