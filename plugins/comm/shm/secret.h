// The job's secret as a key: what a process can only say if it knows the job's id.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_SECRET_H_
#define CAPSTAN_PLUGINS_COMM_SHM_SECRET_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace capstan::shm {

// SipHash-2-4 (Aumasson and Bernstein 2012) of `size` bytes under a 128-bit key.
uint64_t siphash(const uint64_t key[2], const void* data, size_t size);

struct Tag {
  uint64_t low = 0, high = 0;
  bool operator==(const Tag&) const = default;
};

class Secret {
 public:
  explicit Secret(std::string_view job);
  // Depends on every byte and on the job.
  Tag sign(const void* data, size_t size) const;

 private:
  uint64_t keys_[2][2];
};

// A number nobody can guess.
uint64_t random_number();

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_SECRET_H_
