// A communication request checked and copied: what a backend may rely on.
#ifndef CAPSTAN_PLUGINS_COMM_COMMON_REQUEST_H_
#define CAPSTAN_PLUGINS_COMM_COMMON_REQUEST_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin_api/comm.h"

namespace capstan::comm {

// Elements [begin, begin + count) of a buffer: the part of one rank.
struct Slice {
  uint64_t begin = 0;
  uint64_t count = 0;
};

struct Item {
  const char* send = nullptr;
  char* recv = nullptr;
  uint64_t count = 0;
  std::vector<Slice> send_slices;  // by rank: reduce-scatter, all-to-all
  std::vector<Slice> recv_slices;  // by rank: all-gather, all-to-all
};

struct Request {
  int32_t operation = 0;
  int32_t reduce = 0;
  capstan_dtype dtype{};
  size_t element = 0;  // bytes
  int32_t root = 0;
  int32_t peer = 0;
  int32_t channel = 0;
  int32_t tag = 0;
  std::vector<Item> items;
  std::string label;

  bool is_message() const {
    return operation == CAPSTAN_COMM_SEND || operation == CAPSTAN_COMM_RECV;
  }
  bool reduces() const {
    return operation == CAPSTAN_COMM_ALL_REDUCE || operation == CAPSTAN_COMM_REDUCE_SCATTER;
  }
  uint64_t elements() const;  // sum of the items' counts

  // "all-reduce (sum) of 2 items, 1536 f32 elements, \"grads.h.0\"": the noun of every message.
  std::string describe() const;
  // Equal on two ranks whose requests match, as far as all ranks must give the same values.
  uint64_t fingerprint() const;
  // Of what this rank sends to and expects from rank `index` of the group: the first must equal the
  // other's second. Only all-to-all has counts that are not in fingerprint().
  uint64_t sends_to(size_t index) const;
  uint64_t expects_from(size_t index) const;
};

// Bytes of a group's finished operations, as capstan_comm_progress tells them. [any thread]
class Volume {
 public:
  void add(const Request& finished);
  void tell(capstan_comm_progress& out) const;

 private:
  std::array<std::atomic<uint64_t>, CAPSTAN_COMM_OPERATIONS> bytes_{};
};

// Throws usage, unsupported or bug errors that name the label and the value. `index` and `size`:
// this rank's place in the group and the number of its members.
Request check_request(const capstan_comm_request& raw, size_t index, size_t size);

// The index of `rank` among the members of a group it makes. Throws usage errors: a member that is no
// rank of the world or stands twice, a group without `rank`.
size_t check_members(std::span<const int32_t> ranks, int32_t rank, int32_t world);

}  // namespace capstan::comm

#endif  // CAPSTAN_PLUGINS_COMM_COMMON_REQUEST_H_
