#include "plugins/comm/shm/peers.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "plugins/comm/shm/futex.h"
#include "plugins/comm/shm/threads.h"

namespace capstan::shm {

// ---- Peer ------------------------------------------------------------------------------------

Peer::Peer(int rank, OwnHome& own)
    : rank_(rank), pid_(getpid()), home_page_(&own.page()), readable_(true) {}

Peer::Peer(int rank, pid_t pid, Descriptor process, Segment home, uint64_t home_address,
           bool may_read)
    : rank_(rank),
      pid_(pid),
      process_(std::move(process)),
      segment_(std::move(home)),
      home_page_(reinterpret_cast<Home*>(segment_.data())),
      readable_(may_read && can_read(home_address)),
      regions_(kMostRegions) {}

OperationRecord& Peer::record(uint64_t offset, uint64_t identity) const {
  if (offset % kLine != 0 || offset < kHomeHeap || offset > kHomeBytes - sizeof(OperationRecord)) {
    throw sdk::bug_error(sdk::text("comm shm: rank ", rank_, " points to no operation"));
  }
  auto& record = *reinterpret_cast<OperationRecord*>(reinterpret_cast<char*>(home_page_) + offset);
  const uint64_t item_bytes = OperationRecord::item_bytes(record.operation, record.members);
  const bool fits = record.members <= kMostMembers &&
                    record.items <= (kHomeBytes - sizeof(OperationRecord) - offset) / item_bytes;
  if (record.identity != identity || !fits) {
    throw sdk::bug_error(sdk::text("comm shm: an operation of rank ", rank_,
                                   " was released while it was in flight"));
  }
  return record;
}

Peer::Region* Peer::mapped(uint32_t index, uint64_t number) {
  if (index >= regions_.size()) return nullptr;
  Region& region = regions_[index];
  if (region.number == number) return &region;
  const RegionEntry& entry = home().regions[index];
  if (entry.number.load() != number) return nullptr;
  const int fd = entry.fd;
  const uint64_t offset = entry.offset, bytes = entry.bytes;
  if (entry.number.load() != number) return nullptr;
  const Descriptor file = open_of_process(pid_, fd, rank_);
  region.mapping =
      Mapping(file.get(), offset, bytes, true, sdk::text("registered memory of rank ", rank_));
  region.number = number;
  return &region;
}

char* Peer::locate(const Place& place, uint64_t bytes) {
  if (own()) return reinterpret_cast<char*>(place.address);
  if (place.registration == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const Region* region = mapped(place.region, place.registration);
  if (region == nullptr || place.offset > region->mapping.bytes() ||
      bytes > region->mapping.bytes() - place.offset) {
    throw sdk::bug_error(sdk::text("comm shm: rank ", rank_,
                                   " uses memory that it has unregistered, or more of it"));
  }
  return region->mapping.data() + place.offset;
}

bool Peer::regions_changed() const {
  return !own() && home().regions_version.load() != seen_version_;
}

void Peer::map_regions() {
  if (own()) return;
  const std::lock_guard lock(mutex_);
  const uint32_t version = home().regions_version.load();
  if (version == mapped_version_) return;
  for (uint32_t i = 0; i < kMostRegions; ++i) {
    const uint64_t number = home().regions[i].number.load();
    if (number != 0) (void)mapped(i, number);
  }
  mapped_version_ = version;
}

void Peer::drop_regions() {
  if (own()) return;
  const std::lock_guard lock(mutex_);
  seen_version_ = home().regions_version.load();
  for (uint32_t i = 0; i < kMostRegions; ++i) {
    Region& region = regions_[i];
    if (region.number != 0 && region.number != home().regions[i].number.load()) region = Region();
  }
}

void Peer::read(uint64_t address, void* to, uint64_t bytes) const {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const iovec local = {at, bytes};
    const iovec remote = {reinterpret_cast<void*>(address), bytes};
    const ssize_t got = process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    if (got <= 0) {
      const int error = errno;
      if (got < 0 && error == EINTR) continue;
      if (got < 0 && error == ESRCH) {
        throw sdk::Error(CAPSTAN_PEER_LOST,
                         sdk::text("rank ", rank_, " (process ", pid_, ") is gone"), false, rank_);
      }
      throw sdk::Error(CAPSTAN_BUG,
                       sdk::text("cannot read ", bytes, " bytes of rank ", rank_, " (",
                                 got < 0 ? std::strerror(error) : "nothing there",
                                 "): the memory of an operation must live until its wait"),
                       false, rank_);
    }
    at += got;
    address += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
}

bool Peer::can_read(uint64_t home_address) const {
  uint64_t nonce = 0;
  const iovec local = {&nonce, sizeof nonce};
  const iovec remote = {reinterpret_cast<void*>(home_address), sizeof nonce};
  return process_vm_readv(pid_, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(sizeof nonce) &&
         nonce == home().nonce;
}

void Peer::ring() const {
  home().bell.fetch_add(1);
  if (home().asleep.load() > 0) futex_wake(home().bell);
}

// ---- Watcher ---------------------------------------------------------------------------------

Watcher::Watcher(std::function<void(int)> ended)
    : ended_(std::move(ended)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_.get() < 0) throw sdk::resource_error("comm shm: no file descriptors are left");
  thread_ = quiet_thread("capstan-watch", [this] { run(); });
}

Watcher::~Watcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  (void)eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Watcher::watch(int pidfd, int rank) {
  {
    const std::lock_guard lock(mutex_);
    watched_.emplace_back(pidfd, rank);
  }
  (void)eventfd_write(wake_.get(), 1);
}

void Watcher::run() {
  while (true) {
    std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      for (const auto& [fd, rank] : watched_) entries.push_back({fd, POLLIN, 0});
    }
    if (poll(entries.data(), entries.size(), -1) < 0) continue;
    eventfd_t drained = 0;
    (void)eventfd_read(wake_.get(), &drained);
    std::vector<int> ended;
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = entries.size(); i-- > 1;) {
        if (entries[i].revents == 0) continue;
        ended.push_back(watched_[i - 1].second);
        watched_.erase(watched_.begin() + static_cast<ptrdiff_t>(i) - 1);
      }
    }
    for (const int rank : ended) ended_(rank);
  }
}

// ---- Peers -----------------------------------------------------------------------------------

// What a rank tells the others of itself through the bootstrap.
struct Peers::Hello {
  uint32_t protocol = kProtocol;
  int32_t pid = 0;
  int32_t fd = 0;
  uint32_t bytes = sizeof(Hello);
  uint64_t process_space = 0;  // of /proc
  char machine[40] = {};       // differs between machines and between boots
  uint64_t home_address = 0;
  uint64_t nonce = 0;
  Tag tag;
};

namespace {

uint64_t process_space() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

std::string machine() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace

Peers::Hello Peers::greeting() const {
  Hello hello;
  hello.pid = getpid();
  hello.fd = home_.fd();
  hello.process_space = process_space();
  machine().copy(hello.machine, sizeof hello.machine - 1);
  hello.home_address = reinterpret_cast<uint64_t>(&home_.page());
  hello.nonce = home_.page().nonce;
  hello.tag = home_.page().tag;
  return hello;
}

Peers::Peers(const sdk::Bootstrap& bootstrap, const Secret& secret, int rank, OwnHome& home,
             bool may_read, std::function<void(int)> ended)
    : bootstrap_(bootstrap),
      secret_(secret),
      rank_(rank),
      home_(home),
      may_read_(may_read),
      watcher_(std::move(ended)) {
  const Hello hello = greeting();
  bootstrap_.put(sdk::text("comm/shm/rank/", rank_),
                 std::string_view(reinterpret_cast<const char*>(&hello), sizeof hello));
}

std::unique_ptr<Peer> Peers::connect(int rank) const {
  const std::string raw = bootstrap_.get(sdk::text("comm/shm/rank/", rank));
  Hello hello;
  if (raw.size() >= sizeof hello.protocol) std::memcpy(&hello.protocol, raw.data(), 4);
  if (raw.size() != sizeof hello || hello.protocol != kProtocol) {
    throw sdk::usage_error(
        sdk::text("comm shm: rank ", rank, " runs another version of this plugin (", hello.protocol,
                  ", here ", kProtocol, "); use the same libraries on every rank"));
  }
  std::memcpy(&hello, raw.data(), sizeof hello);
  hello.machine[sizeof hello.machine - 1] = '\0';
  if (hello.machine != machine() || hello.process_space != process_space()) {
    throw sdk::unsupported_error(
        sdk::text("comm shm: rank ", rank, " and rank ", rank_,
                  " are on different machines or in different containers; shm reaches one machine, "
                  "use [comm] plugin = \"mpi\""));
  }
  Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, hello.pid, 0)));
  if (process.get() < 0 && errno == ESRCH) {
    throw sdk::Error(CAPSTAN_PEER_LOST,
                     sdk::text("comm shm: rank ", rank, " (process ", hello.pid, ") is gone"),
                     false, rank);
  }
  if (process.get() < 0) {
    throw sdk::unsupported_error(sdk::text("comm shm: cannot watch process ", hello.pid,
                                           " of rank ", rank, " (", std::strerror(errno),
                                           "); Linux 5.3 or newer is needed"));
  }
  Segment home(hello.pid, hello.fd, rank, kHomeBytes);
  const Home& page = *reinterpret_cast<const Home*>(home.data());
  const uint64_t words[2] = {hello.nonce, static_cast<uint64_t>(rank)};
  if (page.nonce != hello.nonce || page.tag != secret_.sign(words, sizeof words)) {
    throw sdk::data_error(sdk::text("comm shm: process ", hello.pid, " says that it is rank ", rank,
                                    " but does not know this job's secret"));
  }
  return std::make_unique<Peer>(rank, hello.pid, std::move(process), std::move(home),
                                hello.home_address, may_read_);
}

Peer& Peers::meet(int rank) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = peers_.find(rank);
    if (it != peers_.end()) return *it->second;
  }
  // Not under the lock: it blocks.
  std::unique_ptr<Peer> made = rank == rank_ ? std::make_unique<Peer>(rank, home_) : connect(rank);
  const std::lock_guard lock(mutex_);
  const auto [it, added] = peers_.emplace(rank, std::move(made));
  if (added && !it->second->own()) watcher_.watch(it->second->process(), rank);
  return *it->second;
}

std::vector<Peer*> Peers::all() {
  std::vector<Peer*> out;
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, peer] : peers_) out.push_back(peer.get());
  return out;
}

void Peers::map_regions() {
  for (Peer* peer : all()) {
    if (peer->gone().load()) continue;
    try {
      peer->map_regions();
    } catch (const sdk::Error& error) {
      // A rank that has just ended concerns the groups it was in, not whoever maps ahead of need.
      if (error.code() != CAPSTAN_PEER_LOST) throw;
    }
  }
}

bool Peers::drop_regions() {
  const std::vector<Peer*> peers = all();
  if (std::none_of(peers.begin(), peers.end(), [](Peer* p) { return p->regions_changed(); })) {
    return true;
  }
  const std::unique_lock lock(memory_lock_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  for (Peer* peer : peers) peer->drop_regions();
  return true;
}

}  // namespace capstan::shm
