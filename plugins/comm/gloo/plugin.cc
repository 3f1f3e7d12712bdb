// comm/gloo: groups of ranks over TCP, through Gloo's transport.
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "plugins/comm/common/reduce.h"
#include "plugins/comm/common/request.h"
#include "plugins/comm/gloo/group.h"
#include "plugins/comm/gloo/quiet_pipe.h"
#include "sdk/comm.h"

namespace {

using namespace capstan;

constexpr capstan_option kOptions[] = {
    sdk::float_option("timeout_s", "300.0",
                      "Seconds a wait may take, and the connecting of a group.")
        .range(1e-3, 1e8),
    sdk::string_option("address", "\"127.0.0.1\"",
                       "Address (or host name) of this machine to listen on."),
    sdk::string_option("interface", "\"\"",
                       "Network interface to listen on, \"eth0\"; empty: the address."),
    sdk::int_option("piece_bytes", "4194304", "Bytes of a reduction worked through at a time.")
        .range(1024, 1 << 30),
    sdk::int_option("gathered_bytes", "16384",
                    "An all-reduce of up to so many bytes is one exchange instead of two.")
        .range(0, 1 << 24),
};

class Gloo {
 public:
  static int32_t probe(const sdk::Host& host) {
    static_cast<void>(sdk::Bootstrap(host));
    return 10;
  }

  Gloo(const sdk::Host& host, const sdk::Options& options)
      : rank_(static_cast<int32_t>(host.rank())),
        world_(static_cast<int32_t>(host.world_size())),
        shared_(host, gloo_comm::Settings(options)) {
    shared_.device = make_device(shared_.settings);
    capabilities_ = sdk::sized<capstan_comm_capabilities>();
    capabilities_.uneven = 1;
    capabilities_.tags = 1;
    capabilities_.device_types = kDevices;
    capabilities_.dtypes = comm::dtypes().data();
    capabilities_.dtype_count = comm::dtypes().size();
  }

  const capstan_comm_capabilities& capabilities() const noexcept { return capabilities_; }
  void link(int32_t, int32_t, double*, double*) const {
    throw sdk::unsupported_error("Gloo does not tell the bandwidth of a link");
  }

  void* group_create(std::span<const int32_t> ranks, int64_t epoch) {
    const std::vector<int32_t> list(ranks.begin(), ranks.end());
    const size_t index = comm::check_members(ranks, rank_, world_);
    const std::lock_guard held(lock_);
    std::erase_if(leaving_, [](const auto& group) { return group->has_left(); });
    // Groups of equal lists and epochs are made in the same order everywhere.
    std::string prefix = sdk::text("gloo/", epoch, "/", ++made_[{list, epoch}], "/");
    for (const int32_t rank : list) prefix += sdk::text(rank, rank == list.back() ? "/" : ",");
    return new gloo_comm::Group(shared_, list, index, std::move(prefix));
  }
  void group_destroy(void* group) noexcept {
    std::unique_ptr<gloo_comm::Group> owned(static_cast<gloo_comm::Group*>(group));
    owned->leave();
    const std::lock_guard held(lock_);
    leaving_.push_back(std::move(owned));
  }

  void* prepare(void* group, const capstan_comm_request& request) {
    auto* const of = static_cast<gloo_comm::Group*>(group);
    std::unique_ptr<gloo_comm::Operation> operation = of->prepare(request);
    operation->group = of;
    return operation.release();
  }
  void release(void* operation) noexcept {
    std::unique_ptr<gloo_comm::Operation> owned(static_cast<gloo_comm::Operation*>(operation));
    gloo_comm::Group* const group = owned->group;
    group->release(std::move(owned));
  }
  void start(void* operation, void*) {
    auto& of = *static_cast<gloo_comm::Operation*>(operation);
    of.group->start(of);
  }
  void wait(void* operation, double timeout_s) {
    auto& of = *static_cast<gloo_comm::Operation*>(operation);
    of.group->wait(of, timeout_s);
  }
  void poll(void* group, capstan_comm_progress* out) {
    static_cast<gloo_comm::Group*>(group)->poll(*out);
  }
  void abort(void* group, const char* reason) noexcept {
    static_cast<gloo_comm::Group*>(group)->abort(reason == nullptr ? "no reason given" : reason);
  }

 private:
  static constexpr int32_t kDevices[] = {CAPSTAN_DEVICE_CPU, 0};

  static std::shared_ptr<::gloo::transport::Device> make_device(
      const gloo_comm::Settings& settings) {
    ::gloo::transport::tcp::attr where;
    if (settings.interface_name.empty()) {
      where.hostname = settings.address;
    } else {
      where.iface = settings.interface_name;
    }
    const gloo_comm::QuietPipe quiet;  // kept by the device's thread
    try {
      return ::gloo::transport::tcp::CreateDevice(where);
    } catch (const std::exception& error) {
      throw sdk::usage_error(sdk::text("[comm] cannot listen on ",
                                       settings.interface_name.empty()
                                           ? "address = \"" + settings.address
                                           : "interface = \"" + settings.interface_name,
                                       "\": ", error.what()));
    }
  }

  int32_t rank_, world_;
  capstan_comm_capabilities capabilities_;
  gloo_comm::Shared shared_;
  std::mutex lock_;
  std::map<std::pair<std::vector<int32_t>, int64_t>, uint64_t> made_;
  std::vector<std::unique_ptr<gloo_comm::Group>> leaving_;
};

}  // namespace

CAPSTAN_PLUGIN_ENTRY("gloo", "1.0.0", "Apache-2.0", "Groups of ranks over TCP, through Gloo.",
                     sdk::comm_component<Gloo>("gloo", "1.0.0",
                                               "Collectives over TCP, through Gloo's transport.",
                                               kOptions));
