// Errors inside a plugin are exceptions; at the ABI they become statuses, and none crosses it.
//
//   throw sdk::usage_error("heads = 7 does not divide width = 48");
//   sdk::check(service->tensor_add(...));              // throws the host's status
//   return sdk::guard([&] { component.rewrite(); });   // catches everything, noexcept
#ifndef CAPSTAN_SDK_ERROR_H_
#define CAPSTAN_SDK_ERROR_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <utility>

#include "plugin_api/base.h"

namespace capstan::sdk {

// A zeroed ABI struct that knows its own size.
template <class T>
constexpr T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

// Item `i` of an array of ABI structs: its stride is the size of the struct its maker knew.
template <class T>
const T& item_of(const T* items, size_t i) {
  const char* first = reinterpret_cast<const char*>(items);
  return *reinterpret_cast<const T*>(first + i * items->struct_size);
}

// The parts of a sentence joined: text("heads = ", heads, " does not divide width = ", width).
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// A failure with its ABI class (CAPSTAN_USAGE ...). The message is a sentence that names the thing,
// the place and the remedy.
class Error : public std::exception {
 public:
  Error(int32_t code, std::string message, bool retryable = false, int32_t culprit_rank = -1)
      : code_(code),
        retryable_(retryable),
        culprit_rank_(culprit_rank),
        message_(std::move(message)) {}

  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const noexcept { return message_; }
  int32_t code() const noexcept { return code_; }
  bool retryable() const noexcept { return retryable_; }
  int32_t culprit_rank() const noexcept { return culprit_rank_; }

 private:
  int32_t code_;
  bool retryable_;
  int32_t culprit_rank_;
  std::string message_;
};

inline Error usage_error(std::string message) { return Error(CAPSTAN_USAGE, std::move(message)); }
inline Error data_error(std::string message) { return Error(CAPSTAN_DATA, std::move(message)); }
inline Error resource_error(std::string message) {
  return Error(CAPSTAN_RESOURCE, std::move(message));
}
inline Error unsupported_error(std::string message) {
  return Error(CAPSTAN_UNSUPPORTED, std::move(message));
}
inline Error bug_error(std::string message) { return Error(CAPSTAN_BUG, std::move(message)); }

namespace internal {

struct OwnedStatus : capstan_status {
  std::string text;
};

// For the one failure that may not allocate its own report. Its release does nothing, so sharing it
// is harmless.
inline capstan_status out_of_memory_status = {
    sizeof(capstan_status), CAPSTAN_RESOURCE, 0, -1, 0, "out of memory", [](capstan_status*) {}};

}  // namespace internal

// A heap status for the host, freed by its own release. Never fails: without memory for the report
// it is the shared "out of memory" status.
inline capstan_status* make_status(int32_t code, const std::string& message, bool retryable = false,
                                   int32_t culprit_rank = -1) noexcept {
  try {
    auto* status = new internal::OwnedStatus();
    try {
      status->text = message;
    } catch (...) {
      delete status;
      return &internal::out_of_memory_status;
    }
    status->struct_size = sizeof(capstan_status);
    status->code = code;
    status->retryable = retryable ? 1 : 0;
    status->culprit_rank = culprit_rank;
    status->reserved = 0;
    status->message = status->text.c_str();
    status->release = [](capstan_status* self) {
      delete static_cast<internal::OwnedStatus*>(self);
    };
    return status;
  } catch (...) {
    return &internal::out_of_memory_status;
  }
}

inline capstan_status* make_status(const Error& error) noexcept {
  return make_status(error.code(), error.message(), error.retryable(), error.culprit_rank());
}

// Throws a non-NULL status as Error and releases it; NULL passes.
inline void check(capstan_status* status) {
  if (status == nullptr) return;
  struct Release {
    capstan_status* status;
    ~Release() { status->release(status); }
  } release{status};
  throw Error(status->code, status->message != nullptr ? status->message : "",
              status->retryable != 0, status->culprit_rank);
}

// Runs `body` and turns whatever it throws into a status; NULL when it returns.
template <class Body>
capstan_status* guard(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return nullptr;
  } catch (const Error& error) {
    return make_status(error);
  } catch (const std::bad_alloc&) {
    return &internal::out_of_memory_status;
  } catch (const std::exception& error) {
    try {
      return make_status(CAPSTAN_BUG, text("unexpected exception: ", error.what()));
    } catch (...) {
      return &internal::out_of_memory_status;
    }
  } catch (...) {
    return make_status(CAPSTAN_BUG, "unexpected exception of an unknown type");
  }
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_ERROR_H_
