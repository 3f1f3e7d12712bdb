#include "runtime/launch/sha256.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "runtime/status.h"

namespace capstan {
namespace {

constexpr size_t kBlock = 64;

// Fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

class Hasher {
 public:
  void Update(std::string_view data) {
    length_ += data.size();
    while (!data.empty()) {
      const size_t n = std::min(kBlock - filled_, data.size());
      std::memcpy(block_ + filled_, data.data(), n);
      filled_ += n;
      data.remove_prefix(n);
      if (filled_ == kBlock) Compress();
    }
  }

  Digest Finish() {
    const uint64_t bits = length_ * 8;
    Update(std::string_view("\x80", 1));
    while (filled_ != kBlock - 8) Update(std::string_view("\0", 1));
    char tail[8];
    for (int i = 0; i < 8; ++i) tail[i] = static_cast<char>(bits >> (56 - 8 * i));
    Update(std::string_view(tail, 8));
    Digest digest;
    for (int i = 0; i < 32; ++i) {
      digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    }
    return digest;
  }

 private:
  void Compress() {
    filled_ = 0;
    uint32_t w[64];
    for (int t = 0; t < 16; ++t) {
      w[t] = uint32_t{block_[4 * t]} << 24 | uint32_t{block_[4 * t + 1]} << 16 |
             uint32_t{block_[4 * t + 2]} << 8 | uint32_t{block_[4 * t + 3]};
    }
    for (int t = 16; t < 64; ++t) {
      const uint32_t a = w[t - 15], b = w[t - 2];
      w[t] = w[t - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[t - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    uint32_t v[8];
    std::memcpy(v, state_, sizeof(v));
    for (int t = 0; t < 64; ++t) {
      const uint32_t e = v[4], a = v[0];
      const uint32_t t1 = v[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                          ((e & v[5]) ^ (~e & v[6])) + kRound[t] + w[t];
      const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                          ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
      std::memmove(v + 1, v, 7 * sizeof(v[0]));
      v[4] += t1;
      v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; ++i) state_[i] += v[i];
  }

  // Fractional parts of the square roots of the first 8 primes.
  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t block_[kBlock] = {};
  size_t filled_ = 0;
  uint64_t length_ = 0;
};

}  // namespace

Digest Sha256(std::string_view data) {
  Hasher hasher;
  hasher.Update(data);
  return hasher.Finish();
}

Digest HmacSha256(std::string_view key, std::string_view message) {
  char padded[kBlock] = {};
  if (key.size() > kBlock) {
    const Digest short_key = Sha256(key);
    std::memcpy(padded, short_key.data(), short_key.size());
  } else if (!key.empty()) {
    std::memcpy(padded, key.data(), key.size());
  }
  char inner[kBlock], outer[kBlock];
  for (size_t i = 0; i < kBlock; ++i) {
    inner[i] = static_cast<char>(padded[i] ^ 0x36);
    outer[i] = static_cast<char>(padded[i] ^ 0x5c);
  }
  Hasher first;
  first.Update({inner, kBlock});
  first.Update(message);
  const Digest digest = first.Finish();
  Hasher second;
  second.Update({outer, kBlock});
  second.Update(AsText(digest));
  return second.Finish();
}

bool SameDigest(const Digest& a, const Digest& b) {
  uint32_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<uint32_t>(a[i] ^ b[i]);
  return difference == 0;
}

std::string ToHex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) {
    text += kDigits[static_cast<uint8_t>(c) >> 4];
    text += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return text;
}

absl::StatusOr<Digest> RandomBytes() {
  Digest bytes;
  ssize_t n;
  do {  // 32 bytes come whole or not at all
    n = ::getrandom(bytes.data(), bytes.size(), 0);
  } while (n < 0 && errno == EINTR);
  if (n != static_cast<ssize_t>(bytes.size())) {
    return ResourceError("the kernel gives no random bytes for the job's secret: ",
                         std::string(strerror(errno)), "; is getrandom(2) forbidden here?");
  }
  return bytes;
}

}  // namespace capstan
