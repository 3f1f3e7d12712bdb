#include "runtime/loader.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/loader_check.h"
#include "runtime/loader_log.h"
#include "runtime/status.h"
#include "runtime/suggest.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostComponents =
    4096;  // a get_component without an end is a bug, not a catalogue

// Now: a missing symbol fails here, not at step 40,000. Local: plugins do not see each other.
// Nodelete: pointers into a library outlive the registry.
constexpr auto kLoadMode =
    static_cast<boost::dll::load_mode::type>(RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

struct Loaded {
  Plugin plugin;
  boost::dll::shared_library library;
  std::pair<dev_t, ino_t> inode;
  std::vector<const Component*> components;
};

std::string Who(const capstan_plugin& plugin, const std::string& path) {
  return StrCat("plugin \"", plugin.name, "\" ", plugin.version, " (", path, ")");
}

std::string Absolute(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return (error ? fs::path(path) : absolute).lexically_normal().string();
}

bool IsPlainName(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

// lib*.so of one folder, sorted.
std::vector<std::string> LibrariesIn(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool library = name.size() > 6 && name.compare(0, 3, "lib") == 0 &&
                         name.compare(name.size() - 3, 3, ".so") == 0;
    if (library) files.push_back(at->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// dlopen maps what the headers promise: on a file cut short it, or the plugin, dies of SIGBUS.
bool CutShort(const std::string& path, off_t size) {
  std::ifstream file(path, std::ios::binary);
  ElfW(Ehdr) header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header))) return false;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return false;  // dlopen says what it is
  if (header.e_phentsize != sizeof(ElfW(Phdr))) return false;
  const auto length = static_cast<uint64_t>(size);
  file.seekg(static_cast<std::streamoff>(header.e_phoff));
  for (int i = 0; i < header.e_phnum; ++i) {
    ElfW(Phdr) part{};
    if (!file.read(reinterpret_cast<char*>(&part), sizeof(part))) return true;
    if (part.p_type != PT_LOAD) continue;
    if (part.p_offset > length || part.p_filesz > length - part.p_offset) return true;
  }
  return false;
}

}  // namespace

std::string HostVersionText() {
  return StrCat("capstan ", CAPSTAN_HOST_VERSION, " (plugin ABI ", CAPSTAN_ABI_MAJOR, ".",
                CAPSTAN_ABI_MINOR, ")");
}

// ---- the host as plugins see it ----------------------------------------------------------------

namespace {

struct HostObject : capstan_host {
  const ServiceRegistry* services = nullptr;
  LogLimiter limiter{SpdlogWriter()};
};

void LogThunk(const capstan_host* host, int32_t level, const char* component, const char* message) {
  auto* self = const_cast<HostObject*>(static_cast<const HostObject*>(host));
  self->limiter.Log(level, component == nullptr ? "" : component,
                    message == nullptr ? "" : message);
}

constexpr capstan_log_service kLogService = {sizeof(capstan_log_service), &LogThunk};

const void* GetService(const capstan_host* host, const char* id) {
  if (id == nullptr) return nullptr;
  const auto* self = static_cast<const HostObject*>(host);
  const void* table = self->services == nullptr ? nullptr : self->services->Find(id);
  if (table == nullptr && std::string_view(id) == CAPSTAN_LOG_SERVICE) return &kLogService;
  return table;
}

}  // namespace

// ---- the registry ------------------------------------------------------------------------------

class PluginRegistry::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {
    static_cast<capstan_host&>(host_) = {sizeof(capstan_host), CAPSTAN_ABI_MAJOR,
                                         CAPSTAN_ABI_MINOR,    "capstan",
                                         CAPSTAN_HOST_VERSION, &GetService};
    host_.services = options_.services;
  }

  ~Impl() {
    // Last in, first out: a plugin may lean on what was there when it started.
    for (auto at = plugins_.rbegin(); at != plugins_.rend(); ++at) {
      if ((*at)->plugin.descriptor->deinit != nullptr) (*at)->plugin.descriptor->deinit();
    }
  }

  const capstan_host* host() const { return &host_; }

  absl::StatusOr<Loaded*> Load(const std::string& path);
  absl::StatusOr<const Component*> FindIn(const Loaded& loaded, std::string_view kind,
                                          std::string_view id) const;
  absl::StatusOr<const Component*> Search(std::string_view kind, std::string_view id);
  std::vector<const Component*> ListAll(std::vector<LoadFailure>* failures);
  std::vector<const Component*> ListLoaded() const;
  std::vector<const Component*> ComponentsOf(const Plugin& plugin) const;

 private:
  absl::Status Open(Loaded* loaded);
  absl::Status ReadComponents(Loaded* loaded);
  absl::Status CheckNotLoadedTwice(const Loaded& loaded) const;
  const Component* FindLoaded(std::string_view kind, std::string_view id) const;
  void ScanAll(std::vector<LoadFailure>* failures);
  absl::Status NotFound(std::string_view kind, std::string_view id,
                        const std::vector<LoadFailure>& failures) const;

  Options options_;
  HostObject host_;
  std::vector<std::unique_ptr<Loaded>> plugins_;  // in the order of init
  std::deque<Component> components_;              // stable addresses
};

absl::StatusOr<Loaded*> PluginRegistry::Impl::Load(const std::string& path) {
  auto loaded = std::make_unique<Loaded>();
  loaded->plugin.path = Absolute(path);
  const std::string& file = loaded->plugin.path;
  struct stat info = {};
  if (::stat(file.c_str(), &info) != 0) return UsageError("there is no plugin file ", file, ".");
  if (!S_ISREG(info.st_mode)) return UsageError("the plugin ", file, " is not a regular file.");
  loaded->inode = {info.st_dev, info.st_ino};
  for (const auto& other : plugins_) {
    if (other->inode == loaded->inode) return other.get();
  }
  if (CutShort(file, info.st_size)) {
    return UsageError("the plugin ", file, " is cut short; build or copy it again.");
  }
  CAPSTAN_RETURN_IF_ERROR(Open(loaded.get()));
  CAPSTAN_RETURN_IF_ERROR(CheckNotLoadedTwice(*loaded));

  const capstan_plugin& descriptor = *loaded->plugin.descriptor;
  if (descriptor.init != nullptr) {
    try {
      if (absl::Status status = FromC(descriptor.init(&host_)); !status.ok()) {
        return Annotate(status, StrCat(Who(descriptor, file), " refused to start"));
      }
    } catch (...) {
      return BugError(Who(descriptor, file),
                      " threw an exception from init across the C boundary; its author must catch "
                      "it and return a status.");
    }
  }
  absl::Status status = ReadComponents(loaded.get());
  if (!status.ok()) {
    if (descriptor.deinit != nullptr) descriptor.deinit();
    return status;
  }
  plugins_.push_back(std::move(loaded));
  return plugins_.back().get();
}

absl::Status PluginRegistry::Impl::Open(Loaded* loaded) {
  const std::string& file = loaded->plugin.path;
  try {
    loaded->library.load(file, kLoadMode);
  } catch (const std::exception& failure) {
    return UsageError("cannot load the plugin ", file, " into ", HostVersionText(), ": ",
                      failure.what());
  }
  if (!loaded->library.has(CAPSTAN_PLUGIN_SYMBOL)) {
    return UsageError(file, " does not export ", CAPSTAN_PLUGIN_SYMBOL,
                      ", so it is not a plugin; build it with capstan_add_plugin.");
  }
  loaded->plugin.descriptor = &loaded->library.get<const capstan_plugin>(CAPSTAN_PLUGIN_SYMBOL);
  return CheckDescriptor(*loaded->plugin.descriptor, file);
}

absl::Status PluginRegistry::Impl::CheckNotLoadedTwice(const Loaded& loaded) const {
  const std::string_view name = loaded.plugin.descriptor->name;
  for (const auto& other : plugins_) {
    if (name != other->plugin.descriptor->name) continue;
    return UsageError(Who(*loaded.plugin.descriptor, loaded.plugin.path),
                      " has the name of one already loaded, ",
                      Who(*other->plugin.descriptor, other->plugin.path),
                      "; remove one of the files or rename the plugin.");
  }
  return absl::OkStatus();
}

absl::Status PluginRegistry::Impl::ReadComponents(Loaded* loaded) {
  const capstan_plugin& descriptor = *loaded->plugin.descriptor;
  const std::string who = Who(descriptor, loaded->plugin.path);
  std::vector<const capstan_component*> found;
  for (size_t i = 0;; ++i) {
    const capstan_component* component = descriptor.get_component(i);
    if (component == nullptr) break;
    if (i == kMostComponents) {
      return UsageError(who, " offers more than ", kMostComponents,
                        " components; get_component must return NULL past the end.");
    }
    CAPSTAN_RETURN_IF_ERROR(CheckComponent(*component, who));
    for (const capstan_component* other : found) {
      if (std::string_view(other->kind) == component->kind &&
          std::string_view(other->id) == component->id) {
        return UsageError(who, " offers ", component->kind, " \"", component->id, "\" twice.");
      }
    }
    found.push_back(component);
  }
  if (found.empty()) return UsageError(who, " offers no component.");
  for (const capstan_component* component : found) {
    components_.push_back({component, &loaded->plugin});
    loaded->components.push_back(&components_.back());
  }
  return absl::OkStatus();
}

absl::StatusOr<const Component*> PluginRegistry::Impl::FindIn(const Loaded& loaded,
                                                              std::string_view kind,
                                                              std::string_view id) const {
  const std::string who = Who(*loaded.plugin.descriptor, loaded.plugin.path);
  std::vector<const Component*> of_kind;
  std::vector<std::string> ids;
  for (const Component* component : loaded.components) {
    if (component->definition->kind != kind) continue;
    if (component->definition->id == id) {
      CAPSTAN_RETURN_IF_ERROR(CheckInterface(*component->definition, who));
      return component;
    }
    of_kind.push_back(component);
    ids.push_back(component->definition->id);
  }
  if (of_kind.empty()) return UsageError(who, " offers no ", kind, ".");
  if (!id.empty()) {
    return UsageError(who, " offers no ", kind, " \"", id, "\"; it has ", absl::StrJoin(ids, ", "),
                      ".");
  }
  if (of_kind.size() > 1) {
    return UsageError(who, " offers several of kind ", kind, " (", absl::StrJoin(ids, ", "),
                      "); name one with plugin = \"ID\" and give the file as plugin_path.");
  }
  CAPSTAN_RETURN_IF_ERROR(CheckInterface(*of_kind.front()->definition, who));
  return of_kind.front();
}

const Component* PluginRegistry::Impl::FindLoaded(std::string_view kind,
                                                  std::string_view id) const {
  for (const Component& component : components_) {
    if (component.definition->kind == kind && component.definition->id == id) return &component;
  }
  return nullptr;
}

absl::StatusOr<const Component*> PluginRegistry::Impl::Search(std::string_view kind,
                                                              std::string_view id) {
  const auto checked = [](const Component* component) -> absl::StatusOr<const Component*> {
    CAPSTAN_RETURN_IF_ERROR(CheckInterface(
        *component->definition, Who(*component->plugin->descriptor, component->plugin->path)));
    return component;
  };
  if (const Component* component = FindLoaded(kind, id)) return checked(component);
  if (IsPlainName(kind) && IsPlainName(id)) {
    for (const std::string& folder : options_.search_path) {
      const std::string file =
          (fs::path(folder) / StrCat("libcapstan_", kind, "_", id, ".so")).string();
      std::error_code error;
      if (!fs::exists(file, error)) continue;
      CAPSTAN_RETURN_IF_ERROR(Load(file).status());
      if (const Component* component = FindLoaded(kind, id)) return checked(component);
    }
  }
  std::vector<LoadFailure> failures;
  ScanAll(&failures);
  if (const Component* component = FindLoaded(kind, id)) return checked(component);
  return NotFound(kind, id, failures);
}

void PluginRegistry::Impl::ScanAll(std::vector<LoadFailure>* failures) {
  // As with PATH, a file hides those of the same name in later folders.
  std::set<std::string> seen;
  for (const auto& loaded : plugins_) seen.insert(fs::path(loaded->plugin.path).filename());
  for (const std::string& folder : options_.search_path) {
    for (const std::string& file : LibrariesIn(folder)) {
      if (!seen.insert(fs::path(file).filename()).second) continue;
      absl::StatusOr<Loaded*> loaded = Load(file);
      if (loaded.ok()) continue;
      failures->push_back({file, std::string(loaded.status().message())});
    }
  }
}

absl::Status PluginRegistry::Impl::NotFound(std::string_view kind, std::string_view id,
                                            const std::vector<LoadFailure>& failures) const {
  std::vector<std::string> ids;
  for (const Component& component : components_) {
    if (component.definition->kind == kind) ids.push_back(component.definition->id);
  }
  std::sort(ids.begin(), ids.end());
  std::string message =
      StrCat("there is no ", kind, " plugin \"", id, "\" in ",
             absl::StrJoin(options_.search_path, ", "), ", which ",
             ids.empty() ? std::string("has none of this kind; name the folder of plugins in "
                                       "CAPSTAN_PLUGIN_PATH")
                         : StrCat("has ", absl::StrJoin(ids, ", ")),
             DidYouMean(id, ids));
  if (!failures.empty()) {
    StrAppend(&message, " (", failures.size(),
              " of its files did not load, the first: ", failures.front().reason, ")");
  }
  return UsageError(message);
}

std::vector<const Component*> PluginRegistry::Impl::ListAll(std::vector<LoadFailure>* failures) {
  std::vector<LoadFailure> ignored;
  ScanAll(failures == nullptr ? &ignored : failures);
  std::vector<const Component*> all;
  for (const Component& component : components_) all.push_back(&component);
  std::stable_sort(all.begin(), all.end(), [](const Component* a, const Component* b) {
    const int kinds = std::string_view(a->definition->kind).compare(b->definition->kind);
    if (kinds != 0) return kinds < 0;
    return std::string_view(a->definition->id) < b->definition->id;
  });
  return all;
}

std::vector<const Component*> PluginRegistry::Impl::ListLoaded() const {
  std::vector<const Component*> all;
  for (const Component& component : components_) all.push_back(&component);
  return all;
}

std::vector<const Component*> PluginRegistry::Impl::ComponentsOf(const Plugin& plugin) const {
  std::vector<const Component*> found;
  for (const Component& component : components_) {
    if (component.plugin == &plugin) found.push_back(&component);
  }
  return found;
}

// ---- the public face ---------------------------------------------------------------------------

std::vector<std::string> PluginRegistry::DefaultSearchPath() {
  std::vector<std::string> folders;
  if (const char* path = std::getenv("CAPSTAN_PLUGIN_PATH")) {
    for (const std::string& folder : std::vector<std::string>(absl::StrSplit(path, ':'))) {
      if (!folder.empty()) folders.push_back(Absolute(folder));
    }
  }
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    const fs::path beside = executable.parent_path();
    folders.push_back((beside / "plugins").string());
    folders.push_back((beside / "../lib/capstan/plugins").lexically_normal().string());
  }
  return folders;
}

absl::StatusOr<std::unique_ptr<PluginRegistry>> PluginRegistry::Create(Options options) {
  for (std::string& folder : options.search_path) folder = Absolute(folder);
  // new: the constructor is private.
  return std::unique_ptr<PluginRegistry>(
      new PluginRegistry(std::make_unique<Impl>(std::move(options))));
}

PluginRegistry::PluginRegistry(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PluginRegistry::~PluginRegistry() = default;

const capstan_host* PluginRegistry::host() const { return impl_->host(); }

absl::StatusOr<const Component*> PluginRegistry::Find(std::string_view kind, std::string_view id,
                                                      const std::string& path) {
  if (path.empty()) return impl_->Search(kind, id);
  CAPSTAN_ASSIGN_OR_RETURN(const Loaded* loaded, impl_->Load(path));
  return impl_->FindIn(*loaded, kind, id);
}

std::vector<const Component*> PluginRegistry::ListAll(std::vector<LoadFailure>* failures) {
  return impl_->ListAll(failures);
}

std::vector<const Component*> PluginRegistry::ListLoaded() const { return impl_->ListLoaded(); }

absl::StatusOr<const Plugin*> PluginRegistry::Load(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const Loaded* loaded, impl_->Load(path));
  return &loaded->plugin;
}

std::vector<const Component*> PluginRegistry::ComponentsOf(const Plugin& plugin) const {
  return impl_->ComponentsOf(plugin);
}

}  // namespace capstan
