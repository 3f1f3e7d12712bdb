// Strings between the standard library and Abseil.
//
// Debian builds Abseil with a string_view of its own, which std::string_view does not convert to.
// This code uses std::string_view throughout; the helpers here cross over.
#ifndef CAPSTAN_RUNTIME_STRINGS_H_
#define CAPSTAN_RUNTIME_STRINGS_H_

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace capstan {

// Lvalues and rvalues that Abseil takes pass through; standard views become Abseil's. Where the two
// types are one, both functions are the identity.
template <typename T>
decltype(auto) ToAbsl(const T& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return absl::string_view(value.data(), value.size());
  } else {
    return (value);
  }
}

inline std::string_view ToStd(absl::string_view value) { return {value.data(), value.size()}; }

// absl::StrCat that also takes std::string_view.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  return absl::StrCat(ToAbsl(parts)...);
}

template <typename... Parts>
void StrAppend(std::string* to, const Parts&... parts) {
  absl::StrAppend(to, ToAbsl(parts)...);
}

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_STRINGS_H_
