#include "plugins/comm/mpi/library.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace capstan::mpi {
namespace {

using sdk::text;

#if defined(OPEN_MPI)
constexpr const char* kVendor = "Open MPI";
#elif defined(MPICH_VERSION)
constexpr const char* kVendor = "MPICH";
#else
constexpr const char* kVendor = "MPI";
#endif

// How long a rank that ends waits for the others to end as well. After a failure the others may be
// waiting for this very rank; after success they may still be writing a checkpoint.
constexpr double kSecondsAfterFailure = 5.0;
constexpr double kSecondsAfterSuccess = 600.0;

// A notice may wait for so many rounds of progress; looking for one costs as much as one request.
constexpr uint64_t kCallsBetweenNotices = 16;

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string_view whole(text, static_cast<size_t>(length));
  std::string line(whole.substr(0, whole.find_first_of("\n,")));
  std::replace(line.begin(), line.end(), '\t', ' ');
  return line;
}

// Whether something that speaks a launcher's protocol started this process.
bool started_by_launcher() {
  constexpr const char* kVariables[] = {
      "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_PORT", "PMI_ID", "PMI_SIZE"};
  return std::any_of(std::begin(kVariables), std::end(kVariables),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

std::string remedy(int64_t ranks) {
  return text("start the ranks with mpirun (mpirun -n ", ranks,
              " capstan train run.toml, without --ranks), or use plugin = \"shm\" in [comm]");
}

}  // namespace

Clock::time_point deadline_after(double seconds) {
  constexpr double kLong = 1e9;
  const double bounded = seconds < 0 ? kLong : std::min(seconds, kLong);
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

sdk::Error failure_of(int code, const std::string& what, int32_t culprit) {
  int kind = MPI_ERR_OTHER;
  MPI_Error_class(code, &kind);
  char said[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, said, &length);
  const std::string_view words(said, static_cast<size_t>(length));
  if (kind == MPI_ERR_TRUNCATE) {
    return sdk::Error(CAPSTAN_BUG,
                      text(what,
                           ": another rank sent more than this one expects, so the ranks' "
                           "requests differ in their counts (",
                           words, ")"),
                      false, culprit);
  }
  if (kind == MPI_ERR_NO_MEM) return sdk::resource_error(text(what, ": ", words));
  if (kind == MPI_ERR_ARG || kind == MPI_ERR_COUNT || kind == MPI_ERR_TYPE || kind == MPI_ERR_TAG ||
      kind == MPI_ERR_RANK || kind == MPI_ERR_COMM || kind == MPI_ERR_BUFFER) {
    return sdk::bug_error(text(what, ": ", kVendor, " refused the call (", words, ")"));
  }
  return sdk::Error(CAPSTAN_PEER_LOST,
                    text(what, ": ", kVendor, " failed (", words,
                         "); see the launcher's output for the rank that ended first"),
                    true, culprit);
}

void check(int code, const std::string& what, int32_t culprit) {
  if (code != MPI_SUCCESS) throw failure_of(code, what, culprit);
}

void Backoff::pause() {
  if (tries_ < kSpins) {
    ++tries_;
  } else if (tries_ < kSpins + kYields) {
    const auto before = Clock::now();
    sched_yield();
    // Gone for a whole time slice: something computes on this core, and a sleeper gets it back sooner
    // than one that gives way.
    const bool long_gone = Clock::now() - before > std::chrono::microseconds(200);
    tries_ = long_gone ? kSpins + kYields : tries_ + 1;
  } else {
    const timespec time{0, sleep_ns_};
    nanosleep(&time, nullptr);
    sleep_ns_ = std::min<int64_t>(sleep_ns_ * 2, 50'000);
  }
}

Library& Library::of_process() {
  static Library* const library = new Library();  // lives until the last exit handler has run
  return *library;
}

void Library::check_launcher(const sdk::Host& host) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  const int64_t ranks = host.world_size();
  if (initialized == 0 && ranks > 1 && !started_by_launcher()) {
    throw sdk::usage_error(
        text("this is one of ", ranks, " ranks, but no MPI launcher started it: ", remedy(ranks)));
  }
}

void Library::join(const sdk::Host& host) {
  const std::lock_guard joining(join_lock_);
  if (world_ == MPI_COMM_NULL) {
    initialise(host);
  }
  check_world(host);
}

void Library::initialise(const sdk::Host& host) {
  int finalized = 0, initialized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    throw sdk::unsupported_error("MPI was finalized in this process and cannot start again");
  }
  const std::string version = library_version();
  if (std::string_view(version).substr(0, std::string_view(kVendor).size()) != kVendor &&
      std::string_view(kVendor) != "MPI") {
    throw sdk::unsupported_error(text("this plugin was built for ", kVendor,
                                      ", but the process "
                                      "already holds ",
                                      version, "; use one MPI in a process"));
  }
  MPI_Initialized(&initialized);
  int level = MPI_THREAD_SINGLE;
  if (initialized != 0) {
    MPI_Query_thread(&level);
  } else {
    check_launcher(host);
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    // MPI is left when the process ends, not with the last component: it could not be entered again.
    // Not from a static destructor, whose order against the library's own is unknown.
    on_exit([](int status, void*) { finalise_at_exit(status); }, nullptr);
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw sdk::unsupported_error(
        text(version, " grants thread level ", level,
             ", but ranks communicate from several threads; initialise it with "
             "MPI_THREAD_SERIALIZED or more"));
  }
  concurrent_ = level >= MPI_THREAD_MULTIPLE;
  MPI_Comm world = MPI_COMM_NULL, machine = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup of the world");
  check(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(world, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(world, &size_), "MPI_Comm_size");
  check(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &machine),
        "MPI_Comm_split_type");
  int local = 1;
  check(MPI_Comm_size(machine, &local), "MPI_Comm_size");
  check(MPI_Comm_free(&machine), "MPI_Comm_free");
  crowded_ = local > sysconf(_SC_NPROCESSORS_ONLN);
  void* bound = nullptr;
  int known = 0;
  check(MPI_Comm_get_attr(world, MPI_TAG_UB, &bound, &known), "MPI_TAG_UB");
  if (known != 0) largest_tag_ = *static_cast<int*>(bound);
  world_ = world;
  const std::lock_guard held(lock_);
  notices_.open(world_, rank_, size_);
}

void Library::check_world(const sdk::Host& host) const {
  if (host.service<capstan_mesh_service>(CAPSTAN_MESH_SERVICE) == nullptr) return;
  const int64_t rank = host.rank(), ranks = host.world_size();
  if (ranks != size_) {
    throw sdk::usage_error(
        text("the mesh has ", ranks, " ranks, but ", library_version(), " sees ", size_,
             size_ == 1 ? ": the launcher is not one of this MPI; " : "; ",
             "use the mpirun of the same MPI (mpirun.openmpi, mpirun.mpich): ", remedy(ranks)));
  }
  if (rank != rank_) {
    throw sdk::usage_error(text("rank ", rank, " of the mesh is rank ", rank_,
                                " of MPI_COMM_WORLD; "
                                "let mpirun alone number the ranks: unset RANK, SLURM_PROCID and "
                                "CAPSTAN_RANK, or start all of them with one launcher"));
  }
}

void Library::progress() noexcept {
  for (size_t i = 0; i < groups_.size(); ++i) groups_[i]->progress();
  if (++calls_ % kCallsBetweenNotices == 0) listen();
}

void Library::listen() noexcept {
  Notice notice;
  while (notices_.receive(notice)) {
    const auto to = std::find_if(groups_.begin(), groups_.end(),
                                 [&](const Progressing* g) { return g->id() == notice.group; });
    if (to != groups_.end()) {
      (*to)->hear(notice);
    } else if (notice.kind == NoticeKind::kAsk) {
      Notice answer;
      answer.group = notice.group;
      answer.kind = NoticeKind::kAnswer;
      answer.position = Notice::kNoGroup;
      notices_.send(notice.from, answer);
    } else if (notice.kind != NoticeKind::kAnswer) {
      notices_.keep(notice);
    }
  }
}

void Library::add(Progressing* who) {
  groups_.push_back(who);
  for (const Notice& notice : notices_.kept_for(who->id())) who->hear(notice);
}
void Library::remove(Progressing* who) { std::erase(groups_, who); }

uint64_t Library::next_group_id(const std::vector<int32_t>& ranks, int64_t epoch) {
  const std::lock_guard held(lock_);
  uint64_t mixed = ++made_[{ranks, epoch}];
  const auto mix = [&mixed](uint64_t word) {
    mixed = (mixed ^ word) * 0xff51afd7ed558ccdu;  // a multiply-xorshift mixer
    mixed ^= mixed >> 32;
  };
  mix(static_cast<uint64_t>(epoch) + 0x9e3779b97f4a7c15u);
  for (const int32_t rank : ranks) mix(static_cast<uint64_t>(rank) + 1);
  mix(ranks.size());
  return mixed;
}

bool Library::wait(Clock::time_point deadline, const std::function<bool()>& done) {
  Backoff backoff(crowded_);
  for (;;) {
    {
      const std::lock_guard held(lock_);
      progress();
      if (done()) return true;
    }
    if (Clock::now() >= deadline) return false;
    backoff.pause();
  }
}

// A rank that fails alone must not hang here, waiting for ranks that wait for it: all of them meet
// first, with a deadline, and take the notices still under way. Leaving without MPI_Finalize tells the
// launcher to end the others.
void Library::finalise_at_exit(int exit_status) {
  Library& library = of_process();
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0 || library.world_ == MPI_COMM_NULL) return;
  const double patience = exit_status == 0 ? kSecondsAfterSuccess : kSecondsAfterFailure;
  if (!library.meet_to_finish(deadline_after(patience))) return;
  MPI_Comm_free(&library.world_);
  MPI_Finalize();
}

bool Library::meet_to_finish(Clock::time_point deadline) {
  // For each rank: how many notices it was sent, and whether some rank has left requests in flight,
  // which MPI_Finalize might wait for.
  std::vector<int> said;
  const int unclean = in_flight_forever_ || blocking_ != 0 ? 1 : 0;
  for (const int sent : notices_.sent()) said.insert(said.end(), {sent, unclean});
  int heard[2] = {0, 0};
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_Ireduce_scatter_block(said.data(), heard, 2, MPI_INT, MPI_SUM, world_, &request);
  bool met = false;
  const bool in_time = wait(deadline, [&] {
    if (!met && code == MPI_SUCCESS) {
      int done = 0;
      code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      met = done != 0;
    }
    listen();
    if (code != MPI_SUCCESS || (met && heard[1] != 0)) return true;
    return met && notices_.received() >= heard[0] && notices_.close();
  });
  return in_time && code == MPI_SUCCESS && heard[1] == 0;
}

}  // namespace capstan::mpi
