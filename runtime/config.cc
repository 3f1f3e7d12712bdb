#include "runtime/config.h"

#include <utility>

#include "runtime/config/resolver.h"
#include "runtime/status.h"

namespace capstan {

absl::StatusOr<Config> LoadConfig(const std::string& path,
                                  const std::vector<std::string>& overrides,
                                  const ComponentFinder& find, const FileReader& read) {
  CAPSTAN_ASSIGN_OR_RETURN(Value document, LoadDocument(path, read));
  for (const std::string& argument : overrides) {
    CAPSTAN_RETURN_IF_ERROR(ApplyOverride(argument, &document));
  }
  return ConfigResolver(std::move(document), path, find).Resolve();
}

}  // namespace capstan
