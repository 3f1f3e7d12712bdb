// SHA-256 (NIST FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for the handshake of the rendezvous. Not
// for bulk data: one block at a time, no vector code.
#ifndef CAPSTAN_RUNTIME_LAUNCH_SHA256_H_
#define CAPSTAN_RUNTIME_LAUNCH_SHA256_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace capstan {

using Digest = std::array<uint8_t, 32>;

Digest Sha256(std::string_view data);
Digest HmacSha256(std::string_view key, std::string_view message);

// Compares in a time that does not depend on where the digests differ.
bool SameDigest(const Digest& a, const Digest& b);

std::string ToHex(std::string_view bytes);
inline std::string_view AsText(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// 32 bytes of the kernel's random generator.
absl::StatusOr<Digest> RandomBytes();

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_SHA256_H_
