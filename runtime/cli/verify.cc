// `capstan verify`: runs a config on its mesh and on one rank, and compares what they leave.
#include "runtime/run/verify.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/cli/cli.h"
#include "runtime/launch/launcher.h"
#include "runtime/run/session.h"
#include "runtime/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// A folder for both runs, gone with this object.
class Scratch {
 public:
  static absl::StatusOr<std::unique_ptr<Scratch>> Make() {
    std::error_code error;
    std::string path = (fs::temp_directory_path(error) / "capstan-verify-XXXXXX").string();
    if (error || ::mkdtemp(path.data()) == nullptr) {
      return ResourceError("verify: cannot make a folder at ", path,
                           "; set TMPDIR to a place that can be written");
    }
    return std::unique_ptr<Scratch>(new Scratch(path));
  }
  ~Scratch() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Runs `capstan train` of the config over `comm`, quietly; its own messages of failure go to standard error.
absl::Status RunOnce(const VerifyArguments& arguments, const Scratch& scratch,
                     const std::string& comm, const std::string& name, int ranks) {
  LaunchOptions launch;
  launch.argv = {"capstan", "train", arguments.config};
  for (const std::string& item : arguments.set) {
    launch.argv.insert(launch.argv.end(), {"--set", item});
  }
  launch.argv.insert(launch.argv.end(),
                     {"--set", StrCat("run.dir=", scratch / name), "--stop-after",
                      StrCat(arguments.steps), "--snapshot", scratch / (name + ".snapshot")});
  if (name == "one") launch.argv.push_back("--alone");
  launch.ranks = ranks;
  const int quiet = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (quiet >= 0) launch.out = quiet;
  absl::StatusOr<int> code = LaunchLocal(launch);
  if (quiet >= 0) ::close(quiet);
  if (!code.ok()) return code.status();
  if (*code == kExitDone) return absl::OkStatus();
  return MakeStatus(*code == kExitUsage ? CAPSTAN_USAGE : CAPSTAN_DATA,
                    StrCat("verify: the run ", name == "one" ? "of one rank" : "on the mesh",
                           " ended with exit code ", *code, ", so there is nothing to compare",
                           comm == "mpi" || comm == "openmpi" || comm == "mpich"
                               ? "; verify starts its ranks itself, which MPI does not allow: add "
                                 "--set comm.plugin=shm"
                               : ""));
}

// What the components say of themselves: the loosest counts.
absl::StatusOr<double> Tolerance(const Session& session) {
  constexpr double kExact = 1e-5;
  double tolerance = kExact;
  // cuts: whether it does something else on several ranks than on one.
  const auto widen = [&](const char* kind, const std::string& id, auto* vtable, void* self,
                         bool cuts) -> absl::Status {
    double own = 0;
    const int32_t says = vtable->equivalence == nullptr ? CAPSTAN_EQUIVALENCE_EXACT
                                                        : vtable->equivalence(self, &own);
    if (says == CAPSTAN_EQUIVALENCE_REFERENCE && cuts) {
      return UsageError(kind, " '", id,
                        "' does not train as one rank would, by its own account, so there is "
                        "nothing to verify it against; leave it out");
    }
    if (says == CAPSTAN_EQUIVALENCE_BOUNDED) tolerance = std::max(tolerance, own);
    return absl::OkStatus();
  };
  const Ingredients& in = session.ingredients();
  for (const auto& s : in.strategies) {
    const std::vector<capstan_axis_use> uses = AxisUses(s);
    const bool cuts = std::any_of(uses.begin(), uses.end(), [&](const capstan_axis_use& use) {
      return in.mesh.Size(use.axis) > 1;
    });
    CAPSTAN_RETURN_IF_ERROR(widen("strategy", s.id, s.vtable, s.self, cuts));
  }
  CAPSTAN_RETURN_IF_ERROR(
      widen("precision", in.precision.id, in.precision.vtable, in.precision.self, false));
  return tolerance;
}

// The worst of each kind, and whether what is judged lies within the tolerance.
struct Verdict {
  std::vector<Difference> worst;
  size_t compared = 0, unjudged = 0;
  int64_t steps = 0;  // compared
  bool good = true;
  bool only_parameters = true;  // what is not good, of parameters and their states alone
};

Verdict Judge(const std::vector<Difference>& all, double tolerance) {
  Verdict verdict;
  std::map<std::string, bool> seen;
  for (const Difference& d : all) {
    ++verdict.compared;
    verdict.steps = std::max(verdict.steps, d.steps);
    if (d.noise) {
      ++verdict.unjudged;
      continue;
    }
    if (!(d.error <= tolerance * static_cast<double>(d.steps))) {
      verdict.good = false;
      verdict.only_parameters &= d.kind == "parameter" || d.kind == "state";
    }
    if (!seen[d.kind]) verdict.worst.push_back(d);
    seen[d.kind] = true;
  }
  return verdict;
}

void Print(const VerifyArguments& arguments, const std::string& mesh, const Verdict& verdict,
           double tolerance) {
  std::string text = absl::StrFormat("%s: %s against one rank, %d step%s, %d values and tensors\n",
                                     arguments.config, mesh, verdict.steps,
                                     verdict.steps == 1 ? "" : "s", verdict.compared);
  for (const Difference& d : verdict.worst) {
    absl::StrAppendFormat(&text, "  %-10s %9.2e  %s\n", d.kind, d.error, d.name);
  }
  if (verdict.unjudged > 0) {
    absl::StrAppendFormat(&text,
                          "  not judged: %d tensors whose gradients are zero but for rounding\n",
                          verdict.unjudged);
  }
  absl::StrAppendFormat(&text, "%s within %.1e a step\n", verdict.good ? "equal" : "NOT equal",
                        tolerance);
  if (!verdict.good && verdict.only_parameters) {
    text +=
        "  only parameters and states differ by more: an optimizer that divides by a gradient's "
        "size "
        "makes long\n  steps of its rounding; --set precision.dtype=f64 tells that from a "
        "mistake\n";
  }
  std::fputs(text.c_str(), stdout);
}

void PrintJson(const std::string& mesh, const Verdict& verdict, double tolerance) {
  nlohmann::ordered_json worst = nlohmann::ordered_json::array();
  for (const Difference& d : verdict.worst) {
    worst.push_back({{"kind", d.kind}, {"name", d.name}, {"error", d.error}});
  }
  const nlohmann::ordered_json report = {{"mesh", mesh},
                                         {"equal", verdict.good},
                                         {"tolerance", tolerance},
                                         {"compared", verdict.compared},
                                         {"unjudged", verdict.unjudged},
                                         {"worst", worst}};
  std::printf("%s\n", report.dump(1).c_str());
}

}  // namespace

absl::StatusOr<int> VerifyCommand(const VerifyArguments& arguments) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
  host->SetRanks({0, arguments.ranks});
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                           Session::Open(arguments.config, arguments.set, host.get()));
  CAPSTAN_ASSIGN_OR_RETURN(double tolerance, Tolerance(*session));
  if (arguments.tolerance >= 0) tolerance = arguments.tolerance;
  const Mesh& mesh = host->mesh();
  if (mesh.world() == 1) {
    return UsageError("verify compares a mesh with one rank, and the mesh of ", arguments.config,
                      " is one rank; give it a [mesh], or --ranks N where an axis is \"auto\"");
  }
  const std::optional<ComponentConfig>& backend = session->config().comm;
  const std::string comm = backend ? backend->component->id : "";
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Scratch> scratch, Scratch::Make());
  CAPSTAN_RETURN_IF_ERROR(
      RunOnce(arguments, *scratch, comm, "mesh", static_cast<int>(mesh.world())));
  CAPSTAN_RETURN_IF_ERROR(RunOnce(arguments, *scratch, comm, "one", 1));
  CAPSTAN_ASSIGN_OR_RETURN(const Store* store, session->store());
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<Difference> differences,
      CompareSnapshots(*store, *scratch / "mesh.snapshot", *scratch / "one.snapshot"));
  const Verdict verdict = Judge(differences, tolerance);
  const std::string name = mesh.world() == 1 ? mesh.ToString() : StrCat("mesh ", mesh.ToString());
  if (arguments.json) {
    PrintJson(name, verdict, tolerance);
  } else {
    Print(arguments, name, verdict, tolerance);
  }
  return verdict.good ? kExitDone : kExitFailed;
}

}  // namespace capstan
