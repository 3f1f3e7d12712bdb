// comm/mpi: groups of ranks over the non-blocking collectives of MPI-3.
#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "plugins/comm/common/reduce.h"
#include "plugins/comm/common/request.h"
#include "plugins/comm/mpi/group.h"
#include "plugins/comm/mpi/library.h"
#include "plugins/comm/mpi/settings.h"
#include "sdk/comm.h"

namespace {

using namespace capstan;

constexpr capstan_option kOptions[] = {
    sdk::float_option("timeout_s", "300.0", "Seconds a wait may take, and the forming of a group.")
        .range(1e-3, 1e9),
    sdk::string_option(
        "reduction", "\"ordered\"",
        "Who adds: ordered: this plugin, in the order of ranks, 16-bit floats in f32; "
        "library: MPI, in an order of its choice.")
        .choices("ordered|library"),
    sdk::string_option(
        "check", "\"first\"",
        "When ranks compare what they are about to do: the first time each operation "
        "is started, always or never.")
        .choices("first|always|never"),
    sdk::int_option("piece_bytes", "4194304", "Bytes of a reduction worked through at a time.")
        .range(1024, 1 << 30),
    sdk::int_option("gathered_bytes", "8192",
                    "An all-reduce of up to so many bytes is one exchange instead of two.")
        .range(0, 1 << 24),
    sdk::int_option("largest_count", "1073741824", "Elements one call of MPI may be given.")
        .range(1, 2147483647),
};

class Mpi {
 public:
  static int32_t probe(const sdk::Host& host) {
    mpi::Library::check_launcher(host);
    return 50;
  }

  Mpi(const sdk::Host& host, const sdk::Options& options)
      : settings_(options), library_(mpi::Library::of_process()) {
    library_.join(host);
    capabilities_ = sdk::sized<capstan_comm_capabilities>();
    capabilities_.uneven = 1;
    capabilities_.tags = 1;
    capabilities_.device_types = kDevices;
    capabilities_.dtypes = comm::dtypes().data();
    capabilities_.dtype_count = comm::dtypes().size();
  }

  const capstan_comm_capabilities& capabilities() const noexcept { return capabilities_; }
  void link(int32_t, int32_t, double*, double*) const {
    throw sdk::unsupported_error("MPI does not tell the bandwidth of a link");
  }

  void* group_create(std::span<const int32_t> ranks, int64_t epoch) {
    comm::check_members(ranks, library_.rank(), library_.size());
    std::vector<int32_t> list(ranks.begin(), ranks.end());
    const uint64_t id = mpi::Library::of_process().next_group_id(list, epoch);
    return new mpi::Group(library_, settings_, std::move(list), epoch, id);
  }
  void group_destroy(void* group) noexcept { delete static_cast<mpi::Group*>(group); }

  void* prepare(void* group, const capstan_comm_request& request) {
    auto* const of = static_cast<mpi::Group*>(group);
    std::unique_ptr<mpi::Operation> operation = of->prepare(request);
    operation->group = of;
    return operation.release();
  }
  void release(void* operation) noexcept {
    std::unique_ptr<mpi::Operation> owned(static_cast<mpi::Operation*>(operation));
    mpi::Group* const group = owned->group;
    group->release(std::move(owned));
  }
  void start(void* operation, void*) {
    auto& of = *static_cast<mpi::Operation*>(operation);
    of.group->start(of);
  }
  void wait(void* operation, double timeout_s) {
    auto& of = *static_cast<mpi::Operation*>(operation);
    of.group->wait(of, timeout_s);
  }
  void poll(void* group, capstan_comm_progress* out) {
    static_cast<mpi::Group*>(group)->poll(*out);
  }
  void abort(void* group, const char* reason) noexcept {
    static_cast<mpi::Group*>(group)->abort(reason == nullptr ? "no reason given" : reason);
  }

 private:
  static constexpr int32_t kDevices[] = {CAPSTAN_DEVICE_CPU, 0};

  mpi::Settings settings_;
  mpi::Library& library_;
  capstan_comm_capabilities capabilities_;
};

}  // namespace

CAPSTAN_PLUGIN_ENTRY(CAPSTAN_MPI_ID, "1.0.0", "Apache-2.0",
                     "Groups of ranks over the non-blocking collectives of MPI-3.",
                     sdk::comm_component<Mpi>(CAPSTAN_MPI_ID, "1.0.0",
                                              "Collectives through " CAPSTAN_MPI_NAME
                                              ", for ranks started by its mpirun.",
                                              kOptions));
