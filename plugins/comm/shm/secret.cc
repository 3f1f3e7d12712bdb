#include "plugins/comm/shm/secret.h"

#include <sys/random.h>

#include <bit>
#include <cstring>

#include "sdk/error.h"

namespace capstan::shm {
namespace {

struct SipState {
  uint64_t v0, v1, v2, v3;

  void round() {
    v0 += v1;
    v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1;
    v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }
  void absorb(uint64_t word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
};

}  // namespace

uint64_t siphash(const uint64_t key[2], const void* data, size_t size) {
  SipState s = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
                key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
  const char* bytes = static_cast<const char*>(data);
  size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + at, 8);
    s.absorb(word);
  }
  uint64_t last = static_cast<uint64_t>(size) << 56;
  for (size_t i = at; i < size; ++i) {
    last |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * (i - at));
  }
  s.absorb(last);
  s.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) s.round();
  return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

Secret::Secret(std::string_view job) {
  // Four words drawn from the job's id, each under a key of its own.
  for (uint64_t i = 0; i < 4; ++i) {
    const uint64_t key[2] = {i, 0x63617073'74616eu};
    keys_[i / 2][i % 2] = siphash(key, job.data(), job.size());
  }
}

Tag Secret::sign(const void* data, size_t size) const {
  return {siphash(keys_[0], data, size), siphash(keys_[1], data, size)};
}

uint64_t random_number() {
  uint64_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) {
    throw sdk::resource_error("comm shm: the system gives no random numbers");
  }
  return value;
}

}  // namespace capstan::shm
