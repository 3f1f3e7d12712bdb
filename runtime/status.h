// Status helpers of the host: the classes of plugin_api/base.h carried by absl::Status.
//
// Every failure has a class (CAPSTAN_USAGE ... CAPSTAN_BUG), a retryable flag and perhaps a culprit
// rank. They travel in payloads of absl::Status, so context can be added on the way up without
// losing what a launcher decides from. A message is one sentence naming the thing, the place and
// the remedy.
#ifndef CAPSTAN_RUNTIME_STATUS_H_
#define CAPSTAN_RUNTIME_STATUS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugin_api/base.h"
#include "runtime/strings.h"

namespace capstan {

// A status of one class. An unknown class (a newer plugin's) is kept as it is and treated as a bug.
absl::Status MakeStatus(int32_t status_class, std::string_view message, bool retryable = false,
                        int32_t culprit_rank = -1);

// The arguments are joined as StrCat of strings.h does.
template <typename... Parts>
absl::Status UsageError(const Parts&... parts) {
  return MakeStatus(CAPSTAN_USAGE, StrCat(parts...));
}
template <typename... Parts>
absl::Status DataError(const Parts&... parts) {
  return MakeStatus(CAPSTAN_DATA, StrCat(parts...));
}
template <typename... Parts>
absl::Status ResourceError(const Parts&... parts) {
  return MakeStatus(CAPSTAN_RESOURCE, StrCat(parts...));
}
template <typename... Parts>
absl::Status UnsupportedError(const Parts&... parts) {
  return MakeStatus(CAPSTAN_UNSUPPORTED, StrCat(parts...));
}
template <typename... Parts>
absl::Status BugError(const Parts&... parts) {
  return MakeStatus(CAPSTAN_BUG, StrCat(parts...));
}
template <typename... Parts>
absl::Status TimeoutError(const Parts&... parts) {
  return MakeStatus(CAPSTAN_TIMEOUT, StrCat(parts...), /*retryable=*/true);
}
template <typename... Parts>
absl::Status PreemptedError(const Parts&... parts) {
  return MakeStatus(CAPSTAN_PREEMPTED, StrCat(parts...), /*retryable=*/true);
}

// What a status carries. Of OK: class 0, not retryable, culprit -1. A status made without
// MakeStatus gets its class from its absl code.
int32_t StatusClass(const absl::Status& status);
bool IsRetryable(const absl::Status& status);
int32_t CulpritRank(const absl::Status& status);
// "usage", "peer_lost", ...; "bug" for classes this host does not know.
std::string_view StatusClassName(int32_t status_class);

// Takes over a plugin's status: copies what it says and releases it. NULL gives OK.
absl::Status FromC(capstan_status* status);
// A status for a plugin to own: NULL for OK, else to be released by `release` exactly once.
capstan_status* ToC(const absl::Status& status);

// The same failure with context before its message: "while reading x: <message>". OK stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// Exit codes of the command line: 0 done, 1 failed, 2 usage or configuration, 3 stopped on request,
// 4 a fault worth retrying.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitStopped = 3;
inline constexpr int kExitRetry = 4;
int ExitCode(const absl::Status& status);

namespace status_internal {
inline const absl::Status& AsStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& AsStatus(const absl::StatusOr<T>& value) {
  return value.status();
}
// Call sites may pass a plugin's status directly; the macros then own it.
inline absl::Status AsStatus(capstan_status* status) { return FromC(status); }
}  // namespace status_internal

}  // namespace capstan

// Returns from the enclosing function when `expression` (absl::Status, absl::StatusOr or
// capstan_status*) is a failure.
#define CAPSTAN_RETURN_IF_ERROR(expression)                                                 \
  do {                                                                                      \
    if (absl::Status capstan_status_now = ::capstan::status_internal::AsStatus(expression); \
        !capstan_status_now.ok()) {                                                         \
      return capstan_status_now;                                                            \
    }                                                                                       \
  } while (false)

#define CAPSTAN_STATUS_CONCAT_INNER(a, b) a##b
#define CAPSTAN_STATUS_CONCAT(a, b) CAPSTAN_STATUS_CONCAT_INNER(a, b)

// CAPSTAN_ASSIGN_OR_RETURN(auto x, F()): declares or assigns x from an absl::StatusOr, or returns
// its failure. Put parentheses around a declaration that contains a comma.
#define CAPSTAN_ASSIGN_OR_RETURN(target, expression)                                         \
  CAPSTAN_ASSIGN_OR_RETURN_INNER(CAPSTAN_STATUS_CONCAT(capstan_value_, __COUNTER__), target, \
                                 expression)
#define CAPSTAN_ASSIGN_OR_RETURN_INNER(value, target, expression) \
  auto value = (expression);                                      \
  if (!value.ok()) return value.status();                         \
  target = *std::move(value)

#endif  // CAPSTAN_RUNTIME_STATUS_H_
