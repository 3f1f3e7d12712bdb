// The program of one of two ranks that fail each other: mpirun -n 2 mpi_failures PLUGIN WHAT.
//   status    every way to end a group, one after the other; says so if each gave the right status.
//             Requests stay unanswered, so MPI is not finalized and the launcher complains.
//   killed    rank 1 dies by SIGKILL in the middle of collectives; rank 0 must not wait for ever
//   mesh      the host numbers the ranks in another way than MPI: refused
// Without mpirun: no_launcher, a host with two ranks: refused.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "sdk/error.h"
#include "sdk/program.h"
#include "tests/comm_mpi/rank.h"

namespace capstan::test {
namespace {

// A collective or message over one int64, so that tests can say something to each other.
class Op {
 public:
  Op(const MpiComm& comm, void* group, int32_t operation, const char* label, int64_t value = 0,
     int32_t peer = 0, int32_t tag = 0)
      : comm_(comm), value_(value) {
    auto item = sdk::sized<capstan_comm_item>();
    item.send = operation == CAPSTAN_COMM_RECV ? nullptr : &value_;
    item.recv = operation == CAPSTAN_COMM_SEND ? nullptr : &value_;
    item.count = 1;
    auto request = sdk::sized<capstan_comm_request>();
    request.operation = operation;
    request.dtype = sdk::kI64;
    request.peer = peer;
    request.tag = tag;
    request.item_count = operation == CAPSTAN_COMM_BARRIER ? 0 : 1;
    request.items = &item;
    request.label = label;
    sdk::check(comm.vtable().prepare(comm.self(), group, &request, &raw_));
  }
  ~Op() { comm_.vtable().release(comm_.self(), raw_); }
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  void start() { sdk::check(comm_.vtable().start(comm_.self(), raw_, nullptr)); }
  void wait(double seconds) { sdk::check(comm_.vtable().wait(comm_.self(), raw_, seconds)); }
  int64_t run() {
    start();
    wait(60);
    return value_;
  }

 private:
  const MpiComm& comm_;
  int64_t value_;
  void* raw_ = nullptr;
};

class Failures {
 public:
  explicit Failures(const std::string& plugin)
      : comm_(load_comm(plugin), host_, {{"timeout_s", "20"}}), control_(group()) {}
  ~Failures() { comm_.vtable().group_destroy(comm_.self(), control_); }

  void all() {
    abort_wakes_the_other();
    deadline_names_who_has_not_started();
    deadline_names_who_is_stopped();
    member_that_left();
    group_the_other_never_made();
    tags_that_differ();
    message_that_never_comes();
  }
  void dies() {
    if (place_.rank == 1) raise(SIGKILL);
    // The launcher normally ends this rank. If it does not, the deadline does.
    expect("a dead rank", CAPSTAN_TIMEOUT, 1, "not heard from: rank 1", [&] {
      Op op(comm_, control_, CAPSTAN_COMM_BARRIER, "after the end");
      op.start();
      op.wait(1);
    });
    std::printf("%s\n", failed_ ? "wrong status" : "survived with the right status");
    std::fflush(stdout);
    _exit(3);
  }
  bool failed() const { return failed_; }

 private:
  using Clock = std::chrono::steady_clock;
  const bool first_ = launched_as().rank == 0;

  void* group() {
    const int32_t ranks[] = {0, 1};
    void* made = nullptr;
    sdk::check(comm_.vtable().group_create(comm_.self(), ranks, 2, epoch_++, &made));
    return made;
  }
  void destroy(void* group) { comm_.vtable().group_destroy(comm_.self(), group); }
  // Both are here.
  void meet() { Op(comm_, control_, CAPSTAN_COMM_BARRIER, "meet").run(); }

  template <class Body>
  void expect(const char* what, int32_t code, int32_t culprit, const std::string& part,
              Body&& body) {
    std::string got = "no status";
    const auto begin = Clock::now();
    try {
      body();
    } catch (const sdk::Error& error) {
      const double took = std::chrono::duration<double>(Clock::now() - begin).count();
      const bool named = culprit < 0 || error.culprit_rank() == culprit;
      if (error.code() == code && named && error.message().find(part) != std::string::npos &&
          took < 10) {
        return;
      }
      got = sdk::text("class ", error.code(), ", culprit ", error.culprit_rank(), ", after ", took,
                      " s: ", error.message());
    }
    failed_ = true;
    std::printf("rank %d, %s: expected class %d, culprit %d, '%s', got %s\n", place_.rank, what,
                code, culprit, part.c_str(), got.c_str());
  }

  void abort_wakes_the_other() {
    void* const g = group();
    Op(comm_, g, CAPSTAN_COMM_BARRIER, "together").run();
    meet();  // nobody is in that barrier any more
    if (first_) comm_.vtable().abort(comm_.self(), g, "tired of waiting");
    auto op = std::make_unique<Op>(comm_, g, CAPSTAN_COMM_ALL_REDUCE, "never", 1);
    for (int i = 0; i < 2; ++i) {
      expect("abort", CAPSTAN_PEER_LOST, 0, "tired of waiting", [&] {
        op->start();
        op->wait(20);
      });
    }
    expect("poll after abort", CAPSTAN_PEER_LOST, 0, "tired of waiting", [&] {
      auto progress = sdk::sized<capstan_comm_progress>();
      sdk::check(comm_.vtable().poll(comm_.self(), g, &progress));
    });
    op.reset();
    destroy(g);
    meet();
  }

  // Rank 1 waits for rank 0's word instead of starting the collective, so it answers.
  void deadline_names_who_has_not_started() {
    void* const g = group();
    Op(comm_, g, CAPSTAN_COMM_BARRIER, "together").run();
    meet();  // nobody is in that barrier any more
    if (first_) {
      expect("late rank", CAPSTAN_TIMEOUT, 1, "rank 1 has not started it", [&] {
        Op op(comm_, g, CAPSTAN_COMM_ALL_REDUCE, "alone", 1);
        op.start();
        op.wait(0.2);
      });
      Op(comm_, control_, CAPSTAN_COMM_SEND, "go on", 1, 1).run();
    } else {
      Op(comm_, control_, CAPSTAN_COMM_RECV, "go on").run();
      expect("told of the deadline", CAPSTAN_PEER_LOST, 1, "'alone'", [&] {
        Op op(comm_, g, CAPSTAN_COMM_ALL_REDUCE, "alone", 1);
        op.start();
        op.wait(20);
      });
    }
    destroy(g);
    meet();
  }

  void deadline_names_who_is_stopped() {
    void* const g = group();
    Op(comm_, g, CAPSTAN_COMM_BARRIER, "together").run();
    meet();  // nobody is in that barrier any more
    if (first_) {
      const auto pid =
          static_cast<pid_t>(Op(comm_, control_, CAPSTAN_COMM_RECV, "pid", 0, 1).run());
      kill(pid, SIGSTOP);
      expect("stopped rank", CAPSTAN_TIMEOUT, 1, "not heard from: rank 1", [&] {
        Op op(comm_, g, CAPSTAN_COMM_ALL_REDUCE, "with a stopped rank", 1);
        op.start();
        op.wait(0.2);
      });
      kill(pid, SIGCONT);
      Op(comm_, control_, CAPSTAN_COMM_SEND, "go on", 1, 1).run();
    } else {
      Op(comm_, control_, CAPSTAN_COMM_SEND, "pid", getpid()).run();
      Op(comm_, control_, CAPSTAN_COMM_RECV, "go on").run();
    }
    destroy(g);
    meet();
  }

  void member_that_left() {
    void* const g = group();
    Op(comm_, g, CAPSTAN_COMM_BARRIER, "together").run();
    meet();  // nobody is in that barrier any more
    if (first_) {
      expect("member that left", CAPSTAN_PEER_LOST, 1, "rank 1 has left", [&] {
        Op op(comm_, g, CAPSTAN_COMM_ALL_REDUCE, "needs both", 1);
        op.start();
        op.wait(20);
      });
    }
    destroy(g);
    meet();
  }

  void group_the_other_never_made() {
    const int64_t epoch = epoch_++;
    if (first_) {
      const int32_t ranks[] = {0, 1};
      void* g = nullptr;
      sdk::check(comm_.vtable().group_create(comm_.self(), ranks, 2, epoch, &g));
      expect("group never made", CAPSTAN_TIMEOUT, 1, "rank 1", [&] {
        Op op(comm_, g, CAPSTAN_COMM_BARRIER, "no group");
        op.start();
        op.wait(0.2);
      });
      comm_.vtable().abort(comm_.self(), g, "given up");
      destroy(g);
    }
    meet();
  }

  void tags_that_differ() {
    void* const g = group();
    if (first_) {
      Op(comm_, g, CAPSTAN_COMM_SEND, "tag four", 1, 1, 4).run();
    } else {
      expect("tags that differ", CAPSTAN_BUG, 0, "'tag four' with tag 4", [&] {
        Op op(comm_, g, CAPSTAN_COMM_RECV, "tag five", 0, 0, 5);
        op.start();
        op.wait(20);
      });
    }
    meet();
    destroy(g);
    meet();
  }

  void message_that_never_comes() {
    void* const g = group();
    if (first_) {
      expect("message that never comes", CAPSTAN_TIMEOUT, 1, "'silence'", [&] {
        Op op(comm_, g, CAPSTAN_COMM_RECV, "silence", 0, 1);
        op.start();
        auto progress = sdk::sized<capstan_comm_progress>();
        sdk::check(comm_.vtable().poll(comm_.self(), g, &progress));
        if (progress.waiting_for != 1) throw sdk::bug_error("poll does not name the sender");
        op.wait(0.2);
      });
    }
    meet();
    destroy(g);
  }

  LaunchedAs place_ = launched_as();
  MpiHost host_{place_};
  MpiComm comm_;
  int64_t epoch_ = 0;
  void* control_;
  bool failed_ = false;
};

// Prints the refusal; exit code 0 if there is one.
int refused(const std::string& plugin, LaunchedAs place) {
  const MpiHost host(place);
  try {
    const MpiComm comm(load_comm(plugin), host, {});
  } catch (const sdk::Error& error) {
    std::printf("refused: %s\n", error.what());
    return 0;
  }
  std::printf("nothing was refused\n");
  return 1;
}

int run(const std::string& plugin, const std::string& what) {
  if (what == "no_launcher") return refused(plugin, {0, 2});
  if (what == "wrong_launcher") return refused(plugin, launched_as());
  if (what == "mesh") return refused(plugin, {1 - launched_as().rank, 2});
  Failures failures(plugin);
  if (what == "killed") {
    failures.dies();
  } else {
    failures.all();
    if (!failures.failed()) std::printf("rank %d: every status is right\n", launched_as().rank);
  }
  return failures.failed() ? 1 : 0;
}

}  // namespace
}  // namespace capstan::test

int main(int argc, char** argv) {
  if (argc != 3) {
    std::printf("usage: %s PLUGIN status|killed|mesh|no_launcher|wrong_launcher\n", argv[0]);
    return 2;
  }
  try {
    return capstan::test::run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::printf("stopped by: %s\n", error.what());
    return 1;
  }
}
