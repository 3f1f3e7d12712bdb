#include "runtime/status.h"

#include <memory>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/types/optional.h"

namespace capstan {
namespace {

constexpr char kClassPayload[] = "capstan/class";
constexpr char kRetryablePayload[] = "capstan/retryable";
constexpr char kCulpritPayload[] = "capstan/culprit_rank";

absl::StatusCode AbslCode(int32_t status_class) {
  switch (status_class) {
    case CAPSTAN_USAGE:
      return absl::StatusCode::kInvalidArgument;
    case CAPSTAN_DATA:
      return absl::StatusCode::kDataLoss;
    case CAPSTAN_RESOURCE:
      return absl::StatusCode::kResourceExhausted;
    case CAPSTAN_TIMEOUT:
      return absl::StatusCode::kDeadlineExceeded;
    case CAPSTAN_PEER_LOST:
      return absl::StatusCode::kUnavailable;
    case CAPSTAN_DEVICE_LOST:
      return absl::StatusCode::kAborted;
    case CAPSTAN_PREEMPTED:
      return absl::StatusCode::kCancelled;
    case CAPSTAN_UNSUPPORTED:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kInternal;
  }
}

int32_t ClassOfAbslCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kPermissionDenied:
      return CAPSTAN_USAGE;
    case absl::StatusCode::kDataLoss:
      return CAPSTAN_DATA;
    case absl::StatusCode::kResourceExhausted:
      return CAPSTAN_RESOURCE;
    case absl::StatusCode::kDeadlineExceeded:
      return CAPSTAN_TIMEOUT;
    case absl::StatusCode::kUnavailable:
      return CAPSTAN_PEER_LOST;
    case absl::StatusCode::kAborted:
      return CAPSTAN_DEVICE_LOST;
    case absl::StatusCode::kCancelled:
      return CAPSTAN_PREEMPTED;
    case absl::StatusCode::kUnimplemented:
      return CAPSTAN_UNSUPPORTED;
    default:
      return CAPSTAN_BUG;
  }
}

absl::optional<int32_t> IntPayload(const absl::Status& status, absl::string_view key) {
  const absl::optional<absl::Cord> payload = status.GetPayload(key);
  int32_t value = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &value)) {
    return absl::nullopt;
  }
  return value;
}

void SetIntPayload(absl::Status* status, absl::string_view key, int32_t value) {
  status->SetPayload(key, absl::Cord(absl::StrCat(value)));
}

// A capstan_status whose message lives beside it.
struct OwnedStatus : capstan_status {
  std::string text;
};

void ReleaseOwned(capstan_status* status) { delete static_cast<OwnedStatus*>(status); }

}  // namespace

absl::Status MakeStatus(int32_t status_class, std::string_view message, bool retryable,
                        int32_t culprit_rank) {
  absl::Status status(AbslCode(status_class), ToAbsl(message));
  SetIntPayload(&status, kClassPayload, status_class);
  if (retryable) SetIntPayload(&status, kRetryablePayload, 1);
  if (culprit_rank >= 0) SetIntPayload(&status, kCulpritPayload, culprit_rank);
  return status;
}

int32_t StatusClass(const absl::Status& status) {
  if (status.ok()) return 0;
  return IntPayload(status, kClassPayload).value_or(ClassOfAbslCode(status.code()));
}

bool IsRetryable(const absl::Status& status) {
  return IntPayload(status, kRetryablePayload).value_or(0) != 0;
}

int32_t CulpritRank(const absl::Status& status) {
  return IntPayload(status, kCulpritPayload).value_or(-1);
}

std::string_view StatusClassName(int32_t status_class) {
  switch (status_class) {
    case 0:
      return "ok";
    case CAPSTAN_USAGE:
      return "usage";
    case CAPSTAN_DATA:
      return "data";
    case CAPSTAN_RESOURCE:
      return "resource";
    case CAPSTAN_TIMEOUT:
      return "timeout";
    case CAPSTAN_PEER_LOST:
      return "peer_lost";
    case CAPSTAN_DEVICE_LOST:
      return "device_lost";
    case CAPSTAN_PREEMPTED:
      return "preempted";
    case CAPSTAN_UNSUPPORTED:
      return "unsupported";
    default:
      return "bug";
  }
}

absl::Status FromC(capstan_status* status) {
  if (status == nullptr) return absl::OkStatus();
  const int32_t culprit = CAPSTAN_HAS(status, culprit_rank) ? status->culprit_rank : -1;
  absl::Status result = MakeStatus(status->code, status->message == nullptr ? "" : status->message,
                                   status->retryable != 0, culprit);
  if (status->release != nullptr) status->release(status);
  return result;
}

capstan_status* ToC(const absl::Status& status) {
  if (status.ok()) return nullptr;
  auto owned = std::make_unique<OwnedStatus>();
  owned->text = std::string(status.message());
  owned->struct_size = sizeof(capstan_status);
  owned->code = StatusClass(status);
  owned->retryable = IsRetryable(status) ? 1 : 0;
  owned->culprit_rank = CulpritRank(status);
  owned->reserved = 0;
  owned->message = owned->text.c_str();
  owned->release = &ReleaseOwned;
  return owned.release();
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status result(status.code(), StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&result](absl::string_view key, const absl::Cord& value) { result.SetPayload(key, value); });
  return result;
}

int ExitCode(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  switch (StatusClass(status)) {
    case CAPSTAN_USAGE:
    case CAPSTAN_UNSUPPORTED:
      return kExitUsage;
    case CAPSTAN_PREEMPTED:
      return kExitStopped;
    case CAPSTAN_TIMEOUT:
    case CAPSTAN_PEER_LOST:
    case CAPSTAN_DEVICE_LOST:
      return kExitRetry;
    default:
      return IsRetryable(status) ? kExitRetry : kExitFailed;
  }
}

}  // namespace capstan
