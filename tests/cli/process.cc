#include "tests/cli/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace capstan::cli_test {
namespace {

namespace fs = std::filesystem;

constexpr auto kDeadline = std::chrono::seconds(60);

// In the child: files as standard streams, then the program. Never returns.
[[noreturn]] void Become(const std::vector<std::string>& arguments, const std::string& where,
                         const Folder& streams) {
  const auto attach = [](const std::string& path, int flags, int as) {
    const int fd = ::open(path.c_str(), flags, 0600);
    if (fd < 0 || ::dup2(fd, as) < 0) ::_exit(126);
  };
  attach(streams / "in", O_RDONLY, STDIN_FILENO);
  attach(streams / "out", O_WRONLY | O_CREAT, STDOUT_FILENO);
  attach(streams / "err", O_WRONLY | O_CREAT, STDERR_FILENO);
  if (!where.empty() && ::chdir(where.c_str()) != 0) ::_exit(126);
  std::vector<char*> argv;
  std::string program = CAPSTAN_BINARY;
  argv.push_back(program.data());
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  ::execv(CAPSTAN_BINARY, argv.data());
  ::_exit(127);
}

}  // namespace

int EndOverdue(pid_t child) {
  int status = 0;
  const auto ends_within = [&](std::chrono::seconds patience) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) return false;
      ::usleep(2000);
    }
    return true;
  };
  ::kill(child, SIGTERM);
  if (ends_within(std::chrono::seconds(2))) return status;
  ::kill(child, SIGTERM);
  if (ends_within(std::chrono::seconds(20))) return status;  // its ranks have ten of them
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return status;
}

Outcome Capstan(const std::vector<std::string>& arguments, const std::string& where,
                const std::string& input) {
  const Folder streams;
  streams.Write("in", input);
  const pid_t child = ::fork();
  if (child == 0) Become(arguments, where, streams);
  int status = 0;
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  bool overdue = false;
  while (!overdue && ::waitpid(child, &status, WNOHANG) == 0) {
    overdue = std::chrono::steady_clock::now() > end;
    ::usleep(2000);
  }
  if (overdue) status = EndOverdue(child);
  Outcome outcome;
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  outcome.out = ReadAll(streams / "out");
  outcome.err = ReadAll(streams / "err");
  if (overdue) {
    ADD_FAILURE() << "capstan " << arguments.front() << " did not end within a minute:\n"
                  << outcome.err << outcome.out;
  }
  return outcome;
}

Folder::Folder() {
  path_ = (fs::temp_directory_path() / "capstan-cli-XXXXXX").string();
  if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot make " << path_;
}

Folder::~Folder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

std::string Folder::Write(const std::string& name, const std::string& text) const {
  const fs::path path = fs::path(path_) / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

std::vector<std::string> Folder::List(const std::string& folder) const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(path_) / folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string ConfigPath(const std::string& name) {
  return std::string(CAPSTAN_REPOSITORY) + "/configs/" + name;
}

std::string TinyConfig(const Folder& folder, int steps) {
  return folder.Write("tiny.toml",
                      "[run]\nname = \"tiny\"\ndir = \"run\"\nsteps = " + std::to_string(steps) +
                          R"(
[device]
plugin = "cpu"
[model]
plugin = "gpt2"
layers = 2
width = 32
heads = 2
vocabulary = 256
max_sequence = 16
[data]
plugin = "tokens"
sequence_length = 16
[[data.source]]
path = "data/train-*.ctok"
[batch]
micro = 2
global = 4
[optimizer]
plugin = "adamw"
lr = 1e-3
[checkpoint]
plugin = "safetensors"
)");
}

}  // namespace capstan::cli_test
