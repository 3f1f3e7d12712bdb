// Runs the built `capstan` the way a user does, and looks at what comes out.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace capstan::cli_test {

struct Outcome {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;
  std::string out, err;
};

// `--set` for tests of several ranks: the deadline of their waits, so that they tell what they wait for
// before the test loses patience.
inline constexpr const char* kRanksDeadline = "comm.timeout_s=20";

// Ends a command that takes too long, and gives its wait status: asks it twice, as a user would, upon
// which a launcher says what its ranks were doing, and kills it when that is of no use.
int EndOverdue(pid_t child);

// `capstan ARGUMENTS...` in directory `where` ("": this one) with `input` on standard input. Fails
// the test when it takes longer than a minute, with what it said.
Outcome Capstan(const std::vector<std::string>& arguments, const std::string& where = "",
                const std::string& input = "");

// A directory of one test, removed with everything in it.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file, its directories too, and gives its path.
  std::string Write(const std::string& name, const std::string& text) const;
  // File names in it (or in a folder of it), sorted, hidden ones too.
  std::vector<std::string> List(const std::string& folder = "") const;

 private:
  std::string path_;
};

std::string ReadAll(const std::string& path);

// configs/NAME of the repository.
std::string ConfigPath(const std::string& name);

// A run that trains in an instant: a GPT of 2 layers over bytes, `steps` steps. Its data are in
// data/ beside the file, its run in run/.
std::string TinyConfig(const Folder& folder, int steps = 2);

}  // namespace capstan::cli_test
