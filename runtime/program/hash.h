// A stable 64-bit hash of names, for RNG keys: FNV-1a (Fowler, Noll, Vo). The SDK's plugins use the
// same function, so keys agree across the ABI.
#pragma once

#include <cstdint>
#include <string_view>

namespace capstan {

constexpr uint64_t Fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace capstan
