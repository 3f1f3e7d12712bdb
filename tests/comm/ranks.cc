#include "tests/comm/ranks.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <new>
#include <random>
#include <stdexcept>

#include "sdk/error.h"

namespace capstan::test {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kKeys = 8192;
constexpr int kCounters = 64;
constexpr size_t kFailureBytes = 8192;
constexpr int kMostRanks = 64;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void Wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Sleep(std::atomic<uint32_t>& word, uint32_t value, double seconds) {
  const auto whole = static_cast<time_t>(seconds);
  const timespec time = {whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

bool AwaitWord(std::atomic<uint32_t>& word, uint32_t least, double seconds) {
  const auto start = Clock::now();
  while (true) {
    const uint32_t now = word.load();
    if (now >= least) return true;
    const double left = seconds - Since(start);
    if (left <= 0) return false;
    Sleep(word, now, left);
  }
}

}  // namespace

// Anonymous memory from before the fork. Keys are only ever added, so a rank that dies in the middle
// of adding one leaves an entry that is never ready.
struct SharedState {
  struct Key {
    std::atomic<uint32_t> ready;
    uint32_t size;
    char name[256];
    char value[512];
  };
  char job[64];
  std::atomic<uint32_t> keys;
  std::atomic<uint32_t> version;  // of the keys: changes when one becomes ready
  Key key[kKeys];
  std::atomic<uint32_t> counter[kCounters];
  std::atomic<uint32_t> failure_bytes[kMostRanks];
  char failures[kMostRanks][kFailureBytes];

  void put(const char* name, const void* value, size_t size) {
    if (std::strlen(name) >= sizeof Key::name || size > sizeof Key::value) {
      throw sdk::resource_error(sdk::text("the tests' bootstrap cannot hold the key ", name));
    }
    const uint32_t at = keys.fetch_add(1);
    if (at >= kKeys) throw sdk::resource_error("the tests' bootstrap has no room for more keys");
    std::strcpy(key[at].name, name);
    std::memcpy(key[at].value, value, size);
    key[at].size = static_cast<uint32_t>(size);
    key[at].ready = 1;
    ++version;
    Wake(version);
  }

  const Key* find(const char* name) const {
    const uint32_t end = std::min<uint32_t>(keys, kKeys);
    for (uint32_t i = 0; i < end; ++i) {
      if (key[i].ready == 1 && std::strcmp(key[i].name, name) == 0) return &key[i];
    }
    return nullptr;
  }

  std::string get(const char* name, double seconds) {
    const auto start = Clock::now();
    while (true) {
      const uint32_t seen = version;
      if (const Key* found = find(name)) return std::string(found->value, found->size);
      const double left = seconds - Since(start);
      if (left <= 0) {
        throw sdk::Error(CAPSTAN_TIMEOUT, sdk::text("bootstrap: nobody put the key '", name,
                                                    "' within ", seconds, " s"));
      }
      Sleep(version, seen, left);
    }
  }
};

// ---- the host of a rank ----------------------------------------------------------------------

struct HostServices {
  static Rank& of(const capstan_host* host) {
    return *static_cast<const Rank::TestHost*>(host)->rank;
  }
  static capstan_status* put(const capstan_host* host, const char* key, const void* value,
                             size_t size) {
    return sdk::guard([&] { of(host).shared_.put(key, value, size); });
  }
  static capstan_status* get(const capstan_host* host, const char* key, const void** value,
                             size_t* size) {
    return sdk::guard([&] {
      thread_local std::string lent;
      const Rank& rank = of(host);
      lent = rank.shared_.get(key, rank.options_.bootstrap_s);
      *value = lent.data();
      *size = lent.size();
    });
  }
  static const void* find(const capstan_host*, const char* id) {
    static const capstan_bootstrap_service bootstrap = {
        sizeof(capstan_bootstrap_service), &put, &get, [](const capstan_host* h) -> const char* {
          const Rank& rank = of(h);
          return rank.rank() == rank.options().stranger ? "another job" : rank.shared_.job;
        }};
    static const capstan_mesh_service mesh = {
        sizeof(capstan_mesh_service),
        [](const capstan_host* h) -> int64_t { return of(h).rank(); },
        [](const capstan_host* h) -> int64_t { return of(h).world(); },
        [](const capstan_host* h, const char*) -> int64_t { return of(h).world(); },
        [](const capstan_host* h, const char*) -> int64_t { return of(h).rank(); },
        [](const capstan_host* h) -> int64_t { return of(h).rank(); },
        [](const capstan_host* h) -> int64_t { return of(h).world(); }};
    static const capstan_log_service log = {
        sizeof(capstan_log_service),
        [](const capstan_host* h, int32_t level, const char* component, const char* message) {
          if (level >= 2) {
            std::fprintf(stderr, "[rank %d] %s: %s\n", of(h).rank(), component, message);
          }
        }};
    if (std::strcmp(id, CAPSTAN_BOOTSTRAP_SERVICE) == 0) return &bootstrap;
    if (std::strcmp(id, CAPSTAN_MESH_SERVICE) == 0) return &mesh;
    if (std::strcmp(id, CAPSTAN_LOG_SERVICE) == 0) return &log;
    return nullptr;
  }
};

Rank::Rank(const RunOptions& options, SharedState& shared, int rank)
    : options_(options), shared_(shared), rank_(rank) {
  host_.struct_size = sizeof(capstan_host);
  host_.abi_major = CAPSTAN_ABI_MAJOR;
  host_.abi_minor = CAPSTAN_ABI_MINOR;
  host_.name = "test";
  host_.version = "0";
  host_.get_service = &HostServices::find;
  host_.rank = this;
}

void Rank::expect(bool ok, const std::string& sentence) {
  if (ok) return;
  const std::string line = sentence + "\n";
  const size_t me = static_cast<size_t>(rank_);
  const size_t at = shared_.failure_bytes[me].fetch_add(static_cast<uint32_t>(line.size()));
  if (at >= kFailureBytes) return;
  std::memcpy(shared_.failures[me] + at, line.data(), std::min(line.size(), kFailureBytes - at));
}

std::atomic<uint32_t>& Rank::counter(int index) { return shared_.counter[index]; }

void Rank::announce(int index) {
  ++shared_.counter[index];
  Wake(shared_.counter[index]);
}

bool Rank::await(int index, uint32_t value, double seconds) {
  return AwaitWord(shared_.counter[index], value, seconds);
}

void Parent::signal(int rank, int number) const { kill(pid(rank), number); }
std::atomic<uint32_t>& Parent::counter(int index) const { return shared_.counter[index]; }
void Parent::announce(int index) const {
  ++shared_.counter[index];
  Wake(shared_.counter[index]);
}
bool Parent::await(int index, uint32_t value, double seconds) const {
  return AwaitWord(shared_.counter[index], value, seconds);
}

// ---- running ---------------------------------------------------------------------------------

namespace {

class SharedMemory {
 public:
  SharedMemory() {
    void* raw = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    state_ = new (raw) SharedState;  // the mapping is zero already
    std::random_device random;
    std::snprintf(state_->job, sizeof state_->job, "test-%08x%08x", random(), random());
  }
  ~SharedMemory() { munmap(static_cast<void*>(state_), sizeof(SharedState)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  SharedState& state() const { return *state_; }

 private:
  SharedState* state_ = nullptr;
};

[[noreturn]] void BeRank(const RunOptions& options, SharedState& shared, int index,
                         const std::function<void(Rank&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int status = 0;
  Rank rank(options, shared, index);
  try {
    body(rank);
  } catch (const std::exception& error) {
    rank.fail(sdk::text("threw: ", error.what()));
  }
  status = shared.failure_bytes[index] == 0 ? 0 : 1;
  std::fflush(nullptr);
  _exit(status);
}

// Waits for one rank until the deadline; past it, kills it.
RankEnd Collect(pid_t pid, double seconds) {
  RankEnd end;
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  pollfd entry = {fd, POLLIN, 0};
  if (poll(&entry, 1, std::max(0, static_cast<int>(seconds * 1000))) != 1) {
    end.overdue = true;
    kill(pid, SIGKILL);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  close(fd);
  end.exited = WIFEXITED(status) && WEXITSTATUS(status) <= 1;
  end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return end;
}

}  // namespace

RunResult RunRanks(const RunOptions& options, const std::function<void(Rank&)>& body,
                   const std::function<void(Parent&)>& parent) {
  const SharedMemory memory;
  SharedState& shared = memory.state();
  const auto start = Clock::now();
  std::fflush(nullptr);
  std::vector<pid_t> pids;
  for (int r = 0; r < options.world; ++r) {
    const pid_t pid = fork();
    if (pid == 0) BeRank(options, shared, r, body);
    if (pid < 0) throw std::runtime_error("cannot fork");
    pids.push_back(pid);
  }
  if (parent) {
    Parent view(shared, pids);
    parent(view);
  }
  RunResult result;
  for (size_t r = 0; r < pids.size(); ++r) {
    RankEnd end = Collect(pids[r], options.deadline_s - Since(start));
    const size_t bytes = std::min<size_t>(shared.failure_bytes[r], kFailureBytes);
    end.failures.assign(shared.failures[r], bytes);
    result.ranks.push_back(std::move(end));
  }
  return result;
}

std::string RunResult::text(const std::vector<int>& expected_dead) const {
  std::string out;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankEnd& end = ranks[r];
    const bool may_die = std::find(expected_dead.begin(), expected_dead.end(),
                                   static_cast<int>(r)) != expected_dead.end();
    if (!end.failures.empty()) out += sdk::text("rank ", r, ": ", end.failures);
    if (end.overdue) {
      out += sdk::text("rank ", r, " was still running at the deadline\n");
    } else if (end.signal != 0 && !may_die) {
      out += sdk::text("rank ", r, " was ended by signal ", end.signal, "\n");
    } else if (!end.exited && end.signal == 0) {
      out += sdk::text("rank ", r, " ended with an unexpected status\n");
    }
  }
  return out;
}

// ---- the component ---------------------------------------------------------------------------

namespace {

// The component's declared defaults, then what the run sets. Defaults are TOML text.
std::vector<OptionValue> OptionValues(const capstan_component& component,
                                      const std::vector<OptionValue>& chosen) {
  std::vector<OptionValue> all;
  for (size_t i = 0; i < component.option_count; ++i) {
    const capstan_option& option = sdk::item_of(component.options, i);
    const auto given = std::find_if(chosen.begin(), chosen.end(),
                                    [&](const OptionValue& v) { return v.key == option.name; });
    if (given != chosen.end()) {
      all.push_back(*given);
      continue;
    }
    if (option.default_value == nullptr) continue;
    OptionValue value{option.name, option.type, 0, option.default_value};
    if (option.type == CAPSTAN_OPTION_BOOL) value.i = value.s == "true";
    if (option.type == CAPSTAN_OPTION_INT) value.i = std::strtoll(value.s.c_str(), nullptr, 10);
    if (value.s.size() >= 2 && value.s.front() == '"')
      value.s = value.s.substr(1, value.s.size() - 2);
    all.push_back(value);
  }
  return all;
}

const capstan_component& Load(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto* plugin = static_cast<const capstan_plugin*>(dlsym(library, CAPSTAN_PLUGIN_SYMBOL));
  if (plugin == nullptr || plugin->magic != CAPSTAN_PLUGIN_MAGIC) {
    throw std::runtime_error(path + " is no Capstan plugin");
  }
  for (size_t i = 0;; ++i) {
    const capstan_component* component = plugin->get_component(i);
    if (component == nullptr) throw std::runtime_error(path + " has no comm component");
    if (std::strcmp(component->kind, "comm") == 0) {
      return *component;
    }
  }
}

}  // namespace

Comm::Comm(Rank& rank) {
  const capstan_component& component = Load(rank.options().plugin);
  vtable_ = static_cast<const capstan_comm_v1*>(component.vtable);
  const std::vector<OptionValue> chosen = OptionValues(component, rank.options().options);
  std::vector<capstan_option_value> values;
  for (const OptionValue& option : chosen) {
    auto value = sdk::sized<capstan_option_value>();
    value.key = option.key.c_str();
    value.type = option.type;
    value.from_user = 1;
    value.i = option.i;
    value.f = option.type == CAPSTAN_OPTION_FLOAT ? std::strtod(option.s.c_str(), nullptr)
                                                  : static_cast<double>(option.i);
    value.s = option.s.c_str();
    values.push_back(value);
  }
  auto options = sdk::sized<capstan_options>();
  options.count = values.size();
  options.values = values.data();
  sdk::check(vtable_->create(rank.host(), &options, &self_));
}

Comm::~Comm() { vtable_->destroy(self_); }

SharedArena::SharedArena(size_t bytes) : bytes_(bytes) {
  fd_ = static_cast<int>(memfd_create("capstan-test", MFD_CLOEXEC));
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes)) != 0) throw std::bad_alloc();
  void* raw = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<char*>(raw);
}

SharedArena::~SharedArena() {
  munmap(data_, bytes_);
  close(fd_);
}

}  // namespace capstan::test
