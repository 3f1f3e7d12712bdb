// What any comm backend must do, checked on every rank against a plain reference.
//
//   ConformanceReport report = RunConformance(*vtable, self, rank, world, {});
//
// Every rank of the job calls it with the same options; it makes its groups and operations by itself.
// Nothing here knows the backend: link capstan_comm_conformance and call it wherever ranks are.
#ifndef CAPSTAN_TESTS_COMM_CONFORMANCE_H_
#define CAPSTAN_TESTS_COMM_CONFORMANCE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "plugin_api/comm.h"

namespace capstan::test {

struct ConformanceOptions {
  // Sums of arbitrary real numbers must equal the sum taken in the order of the group, bit for bit.
  // false: for backends whose library picks the order.
  bool fixed_order = true;
  // Seconds a single wait may take.
  double timeout_s = 30;
  // Where the ranks' buffers lie: nullptr for the heap, else memory that the caller registered.
  char* arena = nullptr;
  size_t arena_bytes = 0;
  // Leaves out sizes of a megabyte and more.
  bool quick = false;
};

struct ConformanceReport {
  size_t operations = 0;              // started and waited for
  std::vector<std::string> failures;  // sentences; the first few
};

// Every collective over dtypes, reductions, sizes, even and uneven parts, in place or not, lists of
// tensors, on groups of 1 to `world` ranks; operations started again, many in flight, several groups
// at once; messages on channels. A status where none is due ends it early.
ConformanceReport RunConformance(const capstan_comm_v1& comm, void* self, int rank, int world,
                                 const ConformanceOptions& options);

// Requests that are wrong by themselves are refused at `prepare`, in a sentence that names the label.
ConformanceReport RunBadRequests(const capstan_comm_v1& comm, void* self, int rank, int world,
                                 const ConformanceOptions& options);

// For backends that find out when ranks disagree: each kind of mismatch is reported on every rank,
// with both labels, and ends the group. Needs two ranks or more.
ConformanceReport RunMismatches(const capstan_comm_v1& comm, void* self, int rank, int world,
                                const ConformanceOptions& options);

}  // namespace capstan::test

#endif  // CAPSTAN_TESTS_COMM_CONFORMANCE_H_
