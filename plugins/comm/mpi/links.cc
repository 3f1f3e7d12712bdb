#include "plugins/comm/mpi/links.h"

#include <algorithm>
#include <cstring>

#include "plugins/comm/mpi/library.h"
#include "plugins/comm/mpi/tags.h"

namespace capstan::mpi {
namespace {

void split(const std::vector<comm::Slice>& slices, std::vector<int>& counts,
           std::vector<int>& begins) {
  for (const comm::Slice& s : slices) {
    counts.push_back(static_cast<int>(s.count));
    begins.push_back(s.count == 0 ? 0 : static_cast<int>(s.begin));
  }
}

}  // namespace

bool Requests::done(const char* what) {
  if (list_.empty()) return true;
  int all = 0;
  const int code =
      MPI_Testall(static_cast<int>(list_.size()), list_.data(), &all, MPI_STATUSES_IGNORE);
  if (code == MPI_ERR_IN_STATUS) {
    for (MPI_Request& request : list_) {
      int one = 0;
      check(MPI_Test(&request, &one, MPI_STATUS_IGNORE), what);
    }
  }
  check(code, what);
  if (all != 0) list_.clear();
  return all != 0;
}

bool Requests::settled() noexcept {
  std::erase_if(list_, [](MPI_Request& request) {
    int done = 0;
    return MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
  return list_.empty();
}

MPI_Datatype carrier(size_t element) {
  switch (element) {
    case 1:
      return MPI_BYTE;
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    default:
      return MPI_UINT64_T;
  }
}

Exchange Exchange::all_to_others(const Links& links, size_t element, uint64_t largest_count,
                                 const std::vector<comm::Slice>& send,
                                 const std::vector<comm::Slice>& recv, uint64_t extent) {
  Exchange out;
  out.element_ = element;
  out.index_ = links.index;
  out.largest_count_ = largest_count;
  out.send_ = send;
  out.recv_ = recv;
  out.send_[links.index].count = out.recv_[links.index].count = 0;
  out.choose(extent == 0 ? ~uint64_t{0} : extent);
  return out;
}

Exchange Exchange::all_gather(const Links& links, size_t element, uint64_t largest_count,
                              const std::vector<comm::Slice>& recv) {
  Exchange out;
  out.element_ = element;
  out.index_ = links.index;
  out.largest_count_ = largest_count;
  out.gathers_ = true;
  out.recv_ = recv;
  out.send_.assign(links.size, {0, recv[links.index].count});
  out.choose(recv.back().begin + recv.back().count);
  return out;
}

void Exchange::choose(uint64_t extent) {
  pairwise_ = extent > largest_count_;
  if (pairwise_) return;
  split(send_, send_counts_, send_begins_);
  split(recv_, recv_counts_, recv_begins_);
}

void Exchange::post(MPI_Comm where, const char* send, char* recv, Requests& out) {
  if (pairwise_) return post_pairwise(where, send, recv, out);
  const MPI_Datatype type = carrier(element_);
  if (gathers_) {
    const bool in_place = send == recv + recv_[index_].begin * element_;
    check(MPI_Iallgatherv(in_place ? MPI_IN_PLACE : send, send_counts_[index_], type, recv,
                          recv_counts_.data(), recv_begins_.data(), type, where, out.add()),
          "MPI_Iallgatherv");
  } else {
    check(MPI_Ialltoallv(send, send_counts_.data(), send_begins_.data(), type, recv,
                         recv_counts_.data(), recv_begins_.data(), type, where, out.add()),
          "MPI_Ialltoallv");
  }
}

// Receives first, so that nothing arrives unexpected if it can be helped. Begins with the next rank,
// so that not all of them send to the same one.
void Exchange::post_pairwise(MPI_Comm where, const char* send, char* recv, Requests& out) const {
  const MPI_Datatype type = carrier(element_);
  const auto pieces = [&](comm::Slice slice, auto&& post_piece) {
    for (uint64_t done = 0; done < slice.count; done += largest_count_) {
      post_piece((slice.begin + done) * element_,
                 static_cast<int>(std::min(largest_count_, slice.count - done)));
    }
  };
  const size_t size = recv_.size();
  for (size_t step = 1; step < size; ++step) {
    const size_t from = (index_ + size - step) % size;
    pieces(recv_[from], [&](uint64_t at, int count) {
      check(
          MPI_Irecv(recv + at, count, type, static_cast<int>(from), kPairwiseTag, where, out.add()),
          "MPI_Irecv");
    });
  }
  for (size_t step = 1; step < size; ++step) {
    const size_t to = (index_ + step) % size;
    pieces(send_[to], [&](uint64_t at, int count) {
      check(MPI_Isend(send + at, count, type, static_cast<int>(to), kPairwiseTag, where, out.add()),
            "MPI_Isend");
    });
  }
  const comm::Slice own = recv_[index_];  // empty but in all-gathers
  char* const to = recv + own.begin * element_;
  const char* const from = send + send_[index_].begin * element_;
  if (own.count != 0 && to != from) std::memcpy(to, from, own.count * element_);
}

}  // namespace capstan::mpi
