// One collective of the conformance suite: its buffers, its request, its expected result.
#ifndef CAPSTAN_TESTS_COMM_COLLECTIVE_CASE_H_
#define CAPSTAN_TESTS_COMM_COLLECTIVE_CASE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin_api/comm.h"
#include "tests/comm/elements.h"

namespace capstan::test {

// Where buffers come from: the heap, or a stretch of memory that is used again by each case.
class Workplace {
 public:
  Workplace(char* arena, size_t bytes) : arena_(arena), bytes_(bytes) {}
  // 64-byte aligned; lives until `clear`.
  char* take(size_t bytes);
  void clear();

 private:
  char* arena_;
  size_t bytes_;
  size_t used_ = 0;
  std::vector<std::vector<char>> heap_;
};

struct Collective {
  int32_t operation = CAPSTAN_COMM_ALL_REDUCE;
  int32_t reduce = CAPSTAN_COMM_SUM;
  capstan_dtype dtype{};
  std::vector<uint64_t> counts;  // elements of each item; ALL_TO_ALL: at most
  bool uneven = false;
  bool in_place = false;
  bool real = false;  // values whose sum depends on the order
  int root = 0;       // index in the group

  std::string describe() const;
};

// The buffers and the request of one rank of a group for a collective.
class CollectiveCase {
 public:
  // ranks: the group's, of which this is ranks[index].
  CollectiveCase(const Collective& what, const std::vector<int32_t>& ranks, size_t index,
                 Workplace& place);

  const capstan_comm_request& request() const { return request_; }

  // Fills what is sent with values of `round`, what is received with a pattern.
  void fill(uint64_t round);
  // "" when every element received is right and nothing else was written, else what is wrong.
  std::string check(uint64_t round) const;

 private:
  struct Item {
    uint64_t send_count = 0, recv_count = 0;  // elements
    char* send = nullptr;
    char* recv = nullptr;
    char* guard = nullptr;  // bytes behind `recv` (behind the whole tensor when in place)
    std::vector<uint64_t> send_parts, recv_parts;
  };

  void lay_out(size_t i, Workplace& place);
  Item sized_item(size_t i) const;
  void set_request();
  uint64_t first_sent(size_t i, size_t r) const;
  double expected(const Values& values, size_t i, uint64_t at) const;
  double reduced(const Values& values, size_t i, uint64_t element) const;
  std::vector<uint64_t> parts(size_t i) const;
  uint64_t exchanged(size_t i, size_t from, size_t to) const;
  double rounded(double value) const;
  bool same(double got, double want) const;
  Values values(uint64_t round) const;

  Collective what_;
  std::vector<int32_t> ranks_;
  size_t index_;
  std::vector<Item> items_;
  std::vector<capstan_comm_item> raw_items_;
  capstan_comm_request request_{};
  std::string label_;
};

}  // namespace capstan::test

#endif  // CAPSTAN_TESTS_COMM_COLLECTIVE_CASE_H_
