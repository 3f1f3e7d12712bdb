#include "plugins/comm/shm/comm.h"

#include <algorithm>
#include <cstring>

#include "plugins/comm/common/reduce.h"
#include "plugins/comm/common/request.h"
#include "plugins/comm/shm/threads.h"

namespace capstan::shm {
namespace {

constexpr int32_t kScore = 10;

Settings read_settings(const sdk::Host& host, const sdk::Options& options) {
  Settings out;
  out.eager_bytes = static_cast<uint32_t>(options.get_int("eager_bytes"));
  out.spin = std::chrono::microseconds(options.get_int("spin_us"));
  out.stream_bytes = static_cast<uint64_t>(options.get_int("stream_mib")) << 20;
  out.may_read = options.get_string("far_memory") != "staged";
  out.local_ranks = host.local_ranks();
  return out;
}

// Bytes per second that one core copies, which is what a message costs.
double copy_rate() {
  constexpr size_t kBytes = size_t{32} << 20;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    std::memcpy(to.data(), from.data(), kBytes);
    const std::chrono::duration<double> took = Clock::now() - start;
    best = std::max(best, static_cast<double>(kBytes) / took.count());
    from[static_cast<size_t>(to[static_cast<size_t>(i)])] ^= 1;
  }
  return best;
}

}  // namespace

int32_t ShmComm::probe(const sdk::Host&) { return kScore; }

ShmComm::ShmComm(const sdk::Host& host, const sdk::Options& options)
    : host_(host),
      rank_(static_cast<int>(host.rank())),
      world_(static_cast<int>(host.world_size())),
      settings_(read_settings(host, options)),
      bootstrap_(world_ > 1 ? std::optional<sdk::Bootstrap>(host) : std::nullopt),
      secret_(bootstrap_ ? bootstrap_->job() : "alone"),
      home_(secret_, rank_) {
  if (bootstrap_) {
    peers_.emplace(*bootstrap_, secret_, rank_, home_, settings_.may_read,
                   [this](int rank) { rank_ended(rank); });
  }
  context_.emplace(rank_, settings_, home_, peers_ ? &*peers_ : nullptr, fetcher_);
  if (!peers_) return;
  progress_ = quiet_thread("capstan-comm", [this] { run(); });
}

ShmComm::~ShmComm() {
  stop_ = true;
  fetcher_.give_up();
  if (progress_.joinable()) {
    home_.page().bell.fetch_add(1);
    futex_wake(home_.page().bell);
    progress_.join();
  }
  const std::lock_guard lock(mutex_);
  groups_.clear();
}

const capstan_comm_capabilities& ShmComm::capabilities() const noexcept {
  static constexpr int32_t kDevices[] = {CAPSTAN_DEVICE_CPU, 0};
  static const capstan_comm_capabilities kCapabilities = [] {
    auto c = sdk::sized<capstan_comm_capabilities>();
    c.uneven = 1;
    c.tags = 1;
    c.max_group = static_cast<int32_t>(kMostMembers);
    c.device_types = kDevices;
    c.dtypes = comm::dtypes().data();
    c.dtype_count = comm::dtypes().size();
    return c;
  }();
  return kCapabilities;
}

void ShmComm::link(int32_t from, int32_t to, double* bandwidth, double* latency) {
  if (from < 0 || to < 0 || from >= world_ || to >= world_) {
    throw sdk::usage_error(
        sdk::text("comm shm: no link between ranks ", from, " and ", to, " of ", world_));
  }
  *bandwidth = copy_rate();
  *latency = 1e-6;
}

void ShmComm::memory_register(void* memory, uint64_t bytes, int32_t fd, uint64_t offset) {
  if (memory == nullptr || bytes == 0 || fd < 0) {
    throw sdk::usage_error(sdk::text("comm shm: memory to register needs an address, a size (",
                                     bytes, ") and a descriptor (", fd,
                                     ") that other processes can map; a device gives it with "
                                     "export_memory"));
  }
  home_.add_region(memory, bytes, fd, offset);
}

void ShmComm::memory_unregister(void* memory) noexcept {
  if (memory == nullptr || !home_.remove_region(memory) || !peers_) return;
  // They hold mappings, and with them the memory.
  for (const Peer* peer : peers_->all()) {
    if (!peer->own()) peer->ring();
  }
}

size_t ShmComm::check_members(std::span<const int32_t> ranks) const {
  if (ranks.size() > kMostMembers) {
    throw sdk::unsupported_error(sdk::text("comm shm: a group of ", ranks.size(),
                                           " ranks; one machine's groups have at most ",
                                           kMostMembers));
  }
  return comm::check_members(ranks, rank_, world_);
}

void* ShmComm::group_create(std::span<const int32_t> ranks, int64_t epoch) {
  const size_t index = check_members(ranks);
  std::string list = sdk::text(epoch);
  for (const int32_t rank : ranks) list += sdk::text(',', rank);
  std::unique_ptr<Board> board;
  if (ranks.size() > 1) {
    int nth = 0;
    {
      const std::lock_guard lock(mutex_);
      nth = made_[list]++;
    }
    const Tag tag = secret_.sign(list.data(), list.size());
    const std::string key = sdk::text("comm/shm/group/", std::hex, tag.low, tag.high, '/', nth);
    board = std::make_unique<Board>(*bootstrap_, secret_, key, ranks, index, *peers_,
                                    settings_.eager_bytes);
    peers_->map_regions();
  } else {
    board = std::make_unique<Board>(rank_);
  }
  auto group = std::make_shared<Group>(*context_, std::move(board));
  {
    const std::lock_guard lock(mutex_);
    groups_.push_back(group);
  }
  // Members that were here before may have rung for it in vain.
  if (ranks.size() > 1) group->board().peer(index).ring();
  return group.get();
}

void ShmComm::group_destroy(void* group) noexcept {
  std::shared_ptr<Group> last;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto it =
      std::find_if(groups_.begin(), groups_.end(), [&](const auto& g) { return g.get() == group; });
  if (it == groups_.end()) return;
  last = std::move(*it);
  groups_.erase(it);
}

void* ShmComm::prepare(void* group, const capstan_comm_request& request) {
  auto* of = static_cast<Group*>(group);
  return new Handle{of, of->prepare(request)};
}

void ShmComm::release(void* operation) noexcept {
  auto* handle = static_cast<Handle*>(operation);
  handle->group->release(handle->op);
  delete handle;
}

void ShmComm::start(void* operation, void*) {
  const auto* handle = static_cast<Handle*>(operation);
  handle->group->start(handle->op);
}

void ShmComm::wait(void* operation, double timeout_s) {
  const auto* handle = static_cast<Handle*>(operation);
  handle->group->wait(handle->op, timeout_s);
}

void ShmComm::poll(void* group, capstan_comm_progress* out) {
  static_cast<Group*>(group)->poll(out);
}

void ShmComm::abort(void* group, const char* reason) noexcept {
  static_cast<Group*>(group)->abort(reason == nullptr ? "no reason given" : reason);
}

// ---- the progress thread -----------------------------------------------------------------------

std::vector<std::shared_ptr<Group>> ShmComm::groups() {
  const std::lock_guard lock(mutex_);
  return groups_;
}

void ShmComm::rank_ended(int rank) {
  Peer& peer = peers_->meet(rank);  // met already, or nobody watched it
  peer.gone() = true;
  for (const auto& group : groups()) group->lost(peer);
}

// Sleeps until a peer rings; then moves on whatever can move.
void ShmComm::run() {
  Home& home = home_.page();
  while (!stop_.load()) {
    const uint32_t bell = home.bell.load();
    bool moved = fetcher_.serve(), settled = true;
    for (const auto& group : groups()) {
      moved = group->progress() || moved;
      settled = settled && group->idle();
    }
    settled = peers_->drop_regions() && settled;
    if (moved) continue;
    home.asleep.fetch_add(1);
    // A ring wakes it. While something is in flight, or mappings are left to drop, it also looks by
    // itself: room in slots comes without a ring.
    if (!stop_.load()) {
      futex_wait(home.bell, bell, settled ? std::chrono::seconds(3600) : kLongestSleep);
    }
    home.asleep.fetch_sub(1);
  }
}

}  // namespace capstan::shm
