// Ranks for tests: threads for the rendezvous, processes of the program `launch_rank` for the launcher.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/launch/world.h"

namespace capstan::launch_test {

// A directory of one test, removed with everything in it.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::vector<std::string> List() const;

 private:
  std::string path_;
};

// Rank `rank` of `size` on one machine, as torchrun would start it; they meet through a file.
World RankOf(int rank, int size);

// Runs `body` on one thread a rank and waits for all.
void OnEveryRank(int size, const std::function<void(int rank)>& body);

// ---- processes ---------------------------------------------------------------------------------

// A running launch_rank whose output is collected. [one thread]
class Program {
 public:
  Program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment);
  ~Program();  // kills it if it still runs
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  // Reads its output until `seen` accepts it; false: it ended, or a minute passed.
  bool Until(const std::function<bool()>& seen);
  bool UntilOut(const std::string& text);
  // Reads on until it has ended; then its exit code, or minus the signal that killed it. Fails the test
  // after a minute.
  int Wait();

  std::string out, err;
  std::string pids;  // as the launcher reports them, a line each start

 private:
  bool Read(int timeout_ms);
  pid_t pid_ = -1;
  int fds_[3] = {-1, -1, -1};
};

// Whether the process exists and is no zombie.
bool Runs(pid_t pid);
// Waits for that not to be so; false after ten seconds.
bool Ends(pid_t pid);

struct LaunchSetup {
  int ranks = 4;
  int max_restarts = 0;
  double grace_s = 5;
  double deadline_s = 60;
  std::vector<std::string> restart_words = {};
  int descriptors = 0;  // the launcher may have open; 0: as many as this process
};

// A launcher of ranks that follow `words` (rank.cc).
class Job {
 public:
  explicit Job(const std::vector<std::string>& words, const LaunchSetup& setup = {});
  Program& launcher() { return launcher_; }
  // Pids of the ranks of the newest start, once they are known.
  std::vector<pid_t> Ranks();
  // Its exit code; fails the test if a rank outlives it.
  int Wait();
  const std::string& out() const { return launcher_.out; }
  const std::string& err() const { return launcher_.err; }

 private:
  Program launcher_;
};

int Count(const std::string& text, const std::string& part);

}  // namespace capstan::launch_test
