// The program of one rank: mpirun -n 4 mpi_conformance PLUGIN [OTHER...]. Exit code 0: all is as it
// must be. The other plugins are loaded before, as by a host that lists all it finds.
#include <cstdio>
#include <exception>
#include <string>

#include "sdk/error.h"
#include "tests/comm/conformance.h"
#include "tests/comm_mpi/rank.h"

namespace capstan::test {
namespace {

class Run {
 public:
  explicit Run(const std::string& plugin) : component_(load_comm(plugin)) {}

  void all() {
    ConformanceOptions options;
    options.quick = place_.world > 2;
    const auto in_order = options;
    options.quick = true;
    // Small worlds do everything; larger ones share it, since their ranks share cores.
    if (place_.world != 3) suite("ordered", {}, in_order, RunConformance);
    // Every call of MPI is cut: what counts beyond an int would do; pieces smaller than tensors.
    if (place_.world != 4) {
      suite("cut into pieces",
            {{"largest_count", "97"}, {"piece_bytes", "1024"}, {"gathered_bytes", "0"}}, options,
            RunConformance);
    }
    options.fixed_order = false;
    if (place_.world != 3) {
      suite("library", {{"reduction", "library"}, {"check", "always"}}, options, RunConformance);
    }
    suite("bad requests", {}, options, RunBadRequests);
    if (place_.world > 1) suite("mismatches", {}, options, RunMismatches);
  }
  bool failed() const { return failed_; }

 private:
  using Suite = ConformanceReport (*)(const capstan_comm_v1&, void*, int, int,
                                      const ConformanceOptions&);

  void suite(const char* name, const OptionTexts& texts, const ConformanceOptions& options,
             Suite body) {
    const MpiComm comm(component_, host_, texts);
    const ConformanceReport report =
        body(comm.vtable(), comm.self(), place_.rank, place_.world, options);
    for (const std::string& failure : report.failures) {
      std::printf("%s: %s\n", name, failure.c_str());
    }
    if (report.operations == 0) std::printf("%s: nothing was done\n", name);
    failed_ = failed_ || !report.failures.empty() || report.operations == 0;
    if (place_.rank == 0) std::printf("%s: %zu operations\n", name, report.operations);
  }

  const capstan_component& component_;
  LaunchedAs place_ = launched_as();
  MpiHost host_{place_};
  bool failed_ = false;
};

}  // namespace
}  // namespace capstan::test

int main(int argc, char** argv) {
  if (argc < 2) {
    std::printf("usage: mpirun -n RANKS %s PLUGIN [OTHER...]\n", argv[0]);
    return 2;
  }
  try {
    for (int i = 2; i < argc; ++i) capstan::test::load_comm(argv[i]);
    capstan::test::Run run(argv[1]);
    run.all();
    return run.failed() ? 1 : 0;
  } catch (const std::exception& error) {
    std::printf("stopped by: %s\n", error.what());
    return 1;
  }
}
