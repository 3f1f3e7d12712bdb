#include "runtime/run/host.h"

#include <string_view>

#include "runtime/program/program_service.h"
#include "runtime/status.h"

namespace capstan {

struct HostServices {
  using Lent = HostEnvironment::Lent;
  static const Lent& Of(const capstan_host* host) { return *reinterpret_cast<const Lent*>(host); }

  static int64_t Rank(const capstan_host* h) { return Of(h).ranks.rank; }
  static int64_t WorldSize(const capstan_host* h) { return Of(h).mesh.world(); }
  static int64_t AxisSize(const capstan_host* h, const char* axis) { return Of(h).mesh.Size(axis); }
  static int64_t AxisIndex(const capstan_host* h, const char* axis) {
    return Of(h).mesh.Index(axis, Of(h).ranks.rank);
  }
  static int64_t LocalRank(const capstan_host* h) { return Of(h).ranks.local_rank; }
  static int64_t LocalRanks(const capstan_host* h) { return Of(h).ranks.local_ranks; }
  static uint64_t Seed(const capstan_host* h) { return Of(h).seed; }

  static capstan_status* Put(const capstan_host* h, const char* key, const void* value,
                             size_t size) {
    return BootstrapPut(Of(h).bootstrap, key, value, size);
  }
  static capstan_status* GetValue(const capstan_host* h, const char* key, const void** value,
                                  size_t* size) {
    return BootstrapGet(Of(h).bootstrap, key, value, size);
  }
  static const char* Job(const capstan_host* h) {
    return Of(h).bootstrap == nullptr ? "" : Of(h).bootstrap->job().c_str();
  }

  static void Log(const capstan_host* h, int32_t level, const char* component,
                  const char* message) {
    const capstan_host* outer = Of(h).outer;
    const auto* log =
        static_cast<const capstan_log_service*>(outer->get_service(outer, CAPSTAN_LOG_SERVICE));
    if (log != nullptr) log->log(outer, level, component, message);
  }

  static const void* Get(const capstan_host* host, const char* id) {
    static constexpr capstan_mesh_service kMesh = {
        sizeof(capstan_mesh_service), Rank, WorldSize, AxisSize, AxisIndex, LocalRank, LocalRanks};
    static constexpr capstan_run_service kRun = {sizeof(capstan_run_service), Seed};
    static constexpr capstan_log_service kLog = {sizeof(capstan_log_service), Log};
    const std::string_view name = id == nullptr ? "" : id;
    static constexpr capstan_bootstrap_service kBootstrap = {sizeof(capstan_bootstrap_service), Put,
                                                             GetValue, Job};
    if (name == CAPSTAN_BOOTSTRAP_SERVICE && Of(host).bootstrap != nullptr) return &kBootstrap;
    if (name == CAPSTAN_MESH_SERVICE) return &kMesh;
    if (name == CAPSTAN_RUN_SERVICE) return &kRun;
    if (name == CAPSTAN_LOG_SERVICE) return &kLog;
    const capstan_host* outer = Of(host).outer;
    return outer->get_service(outer, id);
  }
};

absl::StatusOr<std::unique_ptr<HostEnvironment>> HostEnvironment::Create() {
  std::unique_ptr<HostEnvironment> host(new HostEnvironment());
  host->services_.Add(CAPSTAN_PROGRAM_SERVICE, ProgramService());
  PluginRegistry::Options options;
  options.search_path = PluginRegistry::DefaultSearchPath();
  options.services = &host->services_;
  CAPSTAN_ASSIGN_OR_RETURN(host->registry_, PluginRegistry::Create(std::move(options)));
  host->lent_.outer = host->registry_->host();
  host->lent_.base = *host->registry_->host();
  host->lent_.base.struct_size = sizeof(capstan_host);
  host->lent_.base.get_service = &HostServices::Get;
  return host;
}

ComponentFinder HostEnvironment::finder() {
  return [this](std::string_view kind, std::string_view id,
                const std::string& path) -> absl::StatusOr<const capstan_component*> {
    CAPSTAN_ASSIGN_OR_RETURN(const Component* component, registry_->Find(kind, id, path));
    return component->definition;
  };
}

}  // namespace capstan
