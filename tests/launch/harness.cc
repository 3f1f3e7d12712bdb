#include "tests/launch/harness.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

extern char** environ;

namespace capstan::launch_test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(60);

std::vector<std::string> LauncherArguments(const std::vector<std::string>& words,
                                           const LaunchSetup& setup) {
  std::vector<std::string> arguments = {"--launch",
                                        std::to_string(setup.ranks),
                                        std::to_string(setup.max_restarts),
                                        std::to_string(setup.grace_s),
                                        std::to_string(setup.deadline_s),
                                        "PIDS",
                                        std::to_string(words.size())};
  arguments.insert(arguments.end(), words.begin(), words.end());
  arguments.insert(arguments.end(), setup.restart_words.begin(), setup.restart_words.end());
  return arguments;
}

}  // namespace

Folder::Folder() {
  path_ = (fs::temp_directory_path() / "capstan-launch-XXXXXX").string();
  if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot make " << path_;
}

Folder::~Folder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

std::vector<std::string> Folder::List() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

World RankOf(int rank, int size) {
  World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.launcher = Launcher::kTorchrun;
  world.job = "torchrun-none-0-29500";
  return world;
}

void OnEveryRank(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) ranks.emplace_back([&body, r] { body(r); });
  for (std::thread& rank : ranks) rank.join();
}

// ---- processes ---------------------------------------------------------------------------------

Program::Program(const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment) {
  int pipes[3][2];
  for (int i = 0; i < 3; ++i) {
    if (::pipe2(pipes[i], O_CLOEXEC) != 0) ADD_FAILURE() << "no pipe";
    fds_[i] = pipes[i][0];
  }
  std::vector<std::string> strings = {CAPSTAN_TEST_RANK};
  for (const std::string& a : arguments) {
    strings.push_back(a == "PIDS" ? std::to_string(pipes[2][1]) : a);
  }
  std::vector<char*> argv, variables;
  for (std::string& s : strings) argv.push_back(s.data());
  argv.push_back(nullptr);
  for (char** v = environ; *v != nullptr; ++v) variables.push_back(*v);
  for (const std::string& v : environment) variables.push_back(const_cast<char*>(v.c_str()));
  variables.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(pipes[0][1], STDOUT_FILENO);
    ::dup2(pipes[1][1], STDERR_FILENO);
    ::fcntl(pipes[2][1], F_SETFD, 0);
    ::execve(CAPSTAN_TEST_RANK, argv.data(), variables.data());
    ::_exit(127);
  }
  for (const auto& pipe : pipes) ::close(pipe[1]);
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const int fd : fds_) {
    if (fd >= 0) ::close(fd);
  }
}

bool Program::Read(int timeout_ms) {
  std::string* const texts[] = {&out, &err, &pids};
  pollfd p[3];
  for (int i = 0; i < 3; ++i) p[i] = {fds_[i], POLLIN, 0};
  ::poll(p, 3, timeout_ms);
  for (int i = 0; i < 3; ++i) {
    if (p[i].revents == 0) continue;
    char piece[65536];
    const ssize_t n = ::read(fds_[i], piece, sizeof(piece));
    if (n > 0) {
      texts[i]->append(piece, static_cast<size_t>(n));
    } else {
      ::close(fds_[i]);
      fds_[i] = -1;
    }
  }
  return fds_[0] >= 0 || fds_[1] >= 0 || fds_[2] >= 0;
}

bool Program::Until(const std::function<bool()>& seen) {
  for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
    if (seen()) return true;
    if (!Read(1000)) return seen();
  }
  return false;
}

bool Program::UntilOut(const std::string& text) {
  return Until([&] { return out.find(text) != std::string::npos; });
}

int Program::Wait() {
  int status = 0;
  const auto end = Clock::now() + kPatience;
  // The pipes close when it ends, unless a process it left behind holds them.
  bool open = true;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (Clock::now() > end) {
      ADD_FAILURE() << "did not end within a minute; it printed:\n" << out << err;
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
      break;
    }
    if (open) {
      open = Read(10);
    } else {
      ::usleep(1000);
    }
  }
  pid_ = -1;
  for (int quiet = 0; open && quiet < 2; ++quiet) {
    const size_t before = out.size() + err.size() + pids.size();
    open = Read(0);
    if (out.size() + err.size() + pids.size() != before) quiet = 0;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

bool Runs(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return false;
  const char state = text[text.rfind(')') + 2];
  return state != 'Z' && state != 'X';
}

bool Ends(pid_t pid) {
  for (const auto end = Clock::now() + std::chrono::seconds(10); Clock::now() < end;) {
    if (!Runs(pid)) return true;
    ::usleep(1000);
  }
  return false;
}

Job::Job(const std::vector<std::string>& words, const LaunchSetup& setup)
    : launcher_(LauncherArguments(words, setup),
                {"TEST_DESCRIPTORS=" + std::to_string(setup.descriptors)}) {}

std::vector<pid_t> Job::Ranks() {
  launcher_.Until([&] { return !launcher_.pids.empty() && launcher_.pids.back() == '\n'; });
  std::istringstream lines(launcher_.pids);
  std::string line, newest;
  while (std::getline(lines, line)) newest = line;
  std::istringstream numbers(newest);
  std::vector<pid_t> pids;
  for (pid_t pid; numbers >> pid;) pids.push_back(pid);
  return pids;
}

int Job::Wait() {
  const int code = launcher_.Wait();
  std::istringstream numbers(launcher_.pids);
  for (pid_t pid; numbers >> pid;) EXPECT_FALSE(Runs(pid)) << "a rank outlives its launcher";
  return code;
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace capstan::launch_test
