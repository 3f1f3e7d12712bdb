#include "runtime/launch/rendezvous_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/launch/wire.h"
#include "runtime/status.h"

namespace capstan {
namespace {

constexpr char kFirstLine[] = "capstan rendezvous 1";
constexpr char kLastLine[] = "end";
constexpr size_t kLongest = 4096;

std::string Reason() { return strerror(errno); }

absl::StatusOr<std::string> ReadSmall(int fd) {
  std::string text(kLongest, '\0');
  ssize_t n;
  do {
    n = ::read(fd, text.data(), text.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) return ResourceError("cannot read: ", Reason());
  text.resize(static_cast<size_t>(n));
  return text;
}

// Where a pid means one process: this machine, and in it this container.
std::string PidSpace() {
  char link[64] = {};
  const ssize_t n = ::readlink("/proc/self/ns/pid", link, sizeof(link) - 1);
  return StrCat(MachineId(), "/", n > 0 ? link : "");
}

// When a process started, in clock ticks since boot: with the pid it names one process for good.
// "": there is no such process.
std::string StartOf(const std::string& pid) {
  const Fd fd(::open(StrCat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.open()) return "";
  const absl::StatusOr<std::string> text = ReadSmall(fd.get());
  const size_t name_end = text.ok() ? text->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) return "";
  // After the name come state (field 3) and on; the start is field 22.
  const std::vector<std::string> fields = absl::StrSplit(text->substr(name_end + 2), ' ');
  if (fields.size() < 20 || fields[0] == "Z" || fields[0] == "X") return "";
  return fields[19];
}

absl::Status NotYet(const std::string& message) {
  return MakeStatus(CAPSTAN_PEER_LOST, message, /*retryable=*/true);
}

// Lines "key value" between the first and the last line; empty: not a whole file.
std::map<std::string, std::string> Parse(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  std::map<std::string, std::string> fields;
  if (lines.size() < 3 || lines.front() != kFirstLine || lines[lines.size() - 2] != kLastLine) {
    return fields;
  }
  for (size_t i = 1; i + 2 < lines.size(); ++i) {
    const size_t space = lines[i].find(' ');
    if (space != std::string::npos) fields[lines[i].substr(0, space)] = lines[i].substr(space + 1);
  }
  return fields;
}

}  // namespace

std::string MachineId() {
  const Fd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const absl::StatusOr<std::string> text = fd.open() ? ReadSmall(fd.get()) : std::string();
  constexpr size_t kUuid = 36;
  if (text.ok() && text->size() >= kUuid) return text->substr(0, kUuid);
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string RendezvousPath(const std::string& directory, const std::string& job) {
  std::string name;
  for (const char c : job) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.';
    name += plain ? c : '_';
  }
  // Ids of any length make a name that file systems take; the digest keeps them apart.
  if (name.size() > 100 || name != job) {
    name = StrCat(name.substr(0, 80), "-", ToHex(AsText(Sha256(job))).substr(0, 16));
  }
  return StrCat(directory, "/.rendezvous-", name);
}

absl::Status WriteRendezvous(const std::string& path, const Rendezvous& rendezvous) {
  const std::string pid = StrCat(::getpid());
  const std::string text =
      StrCat(kFirstLine, "\naddress ", rendezvous.address, "\nport ", rendezvous.port, "\nsecret ",
             rendezvous.secret, "\nspace ", PidSpace(), "\npid ", pid, "\nstart ", StartOf(pid),
             "\n", kLastLine, "\n");
  const std::string draft = StrCat(path, ".", pid);
  ::unlink(draft.c_str());
  {
    const Fd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd.open() ||
        ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      const std::string reason = Reason();
      ::unlink(draft.c_str());
      return ResourceError("rank 0 cannot write ", draft,
                           ", through which the ranks meet: ", reason,
                           "; check run.dir, its permissions and its disk");
    }
  }
  if (::rename(draft.c_str(), path.c_str()) != 0) {
    const std::string reason = Reason();
    ::unlink(draft.c_str());
    return ResourceError("rank 0 cannot write ", path, ", through which the ranks meet: ", reason);
  }
  return absl::OkStatus();
}

absl::StatusOr<Rendezvous> ReadRendezvous(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.open()) {
    if (errno == ENOENT) return NotYet(StrCat(path, " is not there: rank 0 has not written it"));
    return ResourceError("cannot open ", path, ", through which the ranks meet: ", Reason());
  }
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != ::geteuid() ||
      (file.st_mode & 077) != 0) {
    return UsageError(path,
                      " is not a file that only this user can read, so another user may have "
                      "put it there; remove it, and use a run.dir that others cannot write to");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadSmall(fd.get()));
  std::map<std::string, std::string> fields = Parse(text);
  Rendezvous found{fields["address"], 0, fields["secret"]};
  if (found.secret.empty() || !absl::SimpleAtoi(fields["port"], &found.port)) {
    return DataError(path, " is damaged; remove it and start the job again");
  }
  if (fields["space"] == PidSpace() && StartOf(fields["pid"]) != fields["start"]) {
    return NotYet(StrCat(path, " is left over from an earlier run (its process ", fields["pid"],
                         " has ended), and rank 0 of this run has not replaced it"));
  }
  return found;
}

void RemoveRendezvous(const std::string& path, const Rendezvous& written) {
  const absl::StatusOr<Rendezvous> there = ReadRendezvous(path);
  if (there.ok() && there->secret == written.secret) ::unlink(path.c_str());
}

}  // namespace capstan
