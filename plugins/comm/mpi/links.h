// What operations see of their group, and the requests they wait for.
#ifndef CAPSTAN_PLUGINS_COMM_MPI_LINKS_H_
#define CAPSTAN_PLUGINS_COMM_MPI_LINKS_H_

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugins/comm/common/request.h"

namespace capstan::mpi {

// Three communicators over the same members. Collectives of one communicator must be called in the
// same order by all: first exchanges follow the order of `start`; second exchanges, which begin
// whenever a first one has arrived, get a communicator (and an order) of their own.
struct Links {
  MPI_Comm first = MPI_COMM_NULL;
  MPI_Comm second = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;  // send, recv
  size_t index = 0, size = 0;
  std::vector<int32_t> ranks;  // of the world
  int largest_tag = 0;
};

// Outstanding requests of one step of an operation. [the library's lock]
class Requests {
 public:
  MPI_Request* add() {
    list_.push_back(MPI_REQUEST_NULL);
    return &list_.back();
  }
  // True when all are done; the list is then empty. Throws the first failure, named `what`.
  bool done(const char* what);
  // The same for requests whose outcome no longer matters.
  bool settled() noexcept;
  bool empty() const { return list_.empty(); }
  void reserve(size_t count) { list_.reserve(count); }

 private:
  std::vector<MPI_Request> list_;
};

// Exchanges of slices between all ranks, prepared once: collectives of MPI, with counts and
// displacements as it wants them, or, where an int cannot hold those, pairwise messages of at most
// `largest_count` elements. All ranks must choose the same way.
class Exchange {
 public:
  // all-to-all: slice r of send goes to rank r, slice r of recv comes from it; the rank's own part is
  // left out. extent: elements from the first to the last of any rank's send or recv side; 0: ranks
  // do not know those of others, so the messages are pairwise.
  static Exchange all_to_others(const Links& links, size_t element, uint64_t largest_count,
                                const std::vector<comm::Slice>& send,
                                const std::vector<comm::Slice>& recv, uint64_t extent);
  // all-gather: own part goes to everyone, slice r of recv comes from rank r.
  static Exchange all_gather(const Links& links, size_t element, uint64_t largest_count,
                             const std::vector<comm::Slice>& recv);

  // Memory of the whole send and recv sides; all_gather: send is the own part, and may be the own
  // slice of recv. Collective over `where`, in the order of calls.
  void post(MPI_Comm where, const char* send, char* recv, Requests& out);

 private:
  void post_pairwise(MPI_Comm where, const char* send, char* recv, Requests& out) const;
  void choose(uint64_t extent);

  size_t element_ = 0, index_ = 0;
  uint64_t largest_count_ = 0;
  bool gathers_ = false, pairwise_ = false;
  std::vector<comm::Slice> send_, recv_;
  std::vector<int> send_counts_, send_begins_, recv_counts_, recv_begins_;
};

// The MPI type that moves one element of so many bytes.
MPI_Datatype carrier(size_t element);

}  // namespace capstan::mpi

#endif  // CAPSTAN_PLUGINS_COMM_MPI_LINKS_H_
