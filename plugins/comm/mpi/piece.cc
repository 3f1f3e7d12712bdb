#include "plugins/comm/mpi/piece.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "plugins/comm/mpi/library.h"

namespace capstan::mpi {
namespace {

using sdk::text;

class BarrierPiece : public Piece {
 public:
  void begin(const Links& links, char*) override {
    check(MPI_Ibarrier(links.first, requests.add()), "MPI_Ibarrier");
  }
};

class BroadcastPiece : public Piece {
 public:
  BroadcastPiece(const comm::Request& request, const comm::Item& item, const Settings& settings)
      : item_(item),
        element_(request.element),
        root_(request.root),
        largest_count_(settings.largest_count) {}

  void begin(const Links& links, char*) override {
    const bool is_root = static_cast<size_t>(root_) == links.index;
    char* const data = is_root ? const_cast<char*>(item_.send) : item_.recv;
    for (uint64_t at = 0; at < item_.count; at += largest_count_) {
      const int count = static_cast<int>(std::min(largest_count_, item_.count - at));
      check(MPI_Ibcast(data + at * element_, count, carrier(element_), root_, links.first,
                       requests.add()),
            "MPI_Ibcast");
    }
    if (is_root && item_.recv != item_.send && item_.count != 0) {
      std::memcpy(item_.recv, item_.send, item_.count * element_);
    }
  }

 private:
  comm::Item item_;
  size_t element_;
  int root_;
  uint64_t largest_count_;
};

class AllGatherPiece : public Piece {
 public:
  AllGatherPiece(const comm::Request& request, const Links& links, const comm::Item& item,
                 const Settings& settings)
      : exchange_(
            Exchange::all_gather(links, request.element, settings.largest_count, item.recv_slices)),
        send_(item.send),
        recv_(item.recv) {}
  void begin(const Links& links, char*) override {
    exchange_.post(links.first, send_, recv_, requests);
  }

 private:
  Exchange exchange_;
  const char* send_;
  char* recv_;
};

// Pairwise always: whether an int holds a rank's counts depends on what only that rank knows.
class AllToAllPiece : public Piece {
 public:
  AllToAllPiece(const comm::Request& request, const Links& links, const comm::Item& item,
                const Settings& settings)
      : exchange_(Exchange::all_to_others(links, request.element, settings.largest_count,
                                          item.send_slices, item.recv_slices, /*extent=*/0)),
        send_(item.send),
        recv_(item.recv),
        own_from_(item.send_slices[links.index].begin * request.element),
        own_to_(item.recv_slices[links.index].begin * request.element),
        own_bytes_(item.send_slices[links.index].count * request.element) {
    if (item.send_slices[links.index].count != item.recv_slices[links.index].count) {
      throw sdk::usage_error(text(request.describe(), ": this rank sends itself ",
                                  item.send_slices[links.index].count, " elements but expects ",
                                  item.recv_slices[links.index].count));
    }
  }
  void begin(const Links& links, char*) override {
    exchange_.post(links.first, send_, recv_, requests);
    if (own_bytes_ != 0) std::memcpy(recv_ + own_to_, send_ + own_from_, own_bytes_);
  }

 private:
  Exchange exchange_;
  const char* send_;
  char* recv_;
  size_t own_from_, own_to_, own_bytes_;
};

// What a rank tells every other about the collective it is about to begin.
struct Announcement {
  uint64_t fingerprint;
  uint64_t sends;  // counts for the receiver, all-to-all
  std::array<char, 112> text;
};

class CheckPiece : public Piece {
 public:
  CheckPiece(const comm::Request& request, const Links& links)
      : ranks_(links.ranks), sent_(links.size), received_(links.size), what_(request.describe()) {
    for (size_t r = 0; r < links.size; ++r) {
      sent_[r].fingerprint = request.fingerprint();
      sent_[r].sends = request.sends_to(r);
      std::strncpy(sent_[r].text.data(), what_.c_str(), sent_[r].text.size() - 1);
      expected_.push_back(request.expects_from(r));
    }
  }
  void begin(const Links& links, char*) override {
    constexpr int kBytes = sizeof(Announcement);
    check(MPI_Ialltoall(sent_.data(), kBytes, MPI_BYTE, received_.data(), kBytes, MPI_BYTE,
                        links.first, requests.add()),
          "MPI_Ialltoall");
  }
  void finish() override {
    for (size_t r = 0; r < received_.size(); ++r) {
      Announcement& theirs = received_[r];
      theirs.text.back() = '\0';
      const bool same = theirs.fingerprint == sent_[r].fingerprint;
      if (same && theirs.sends == expected_[r]) continue;
      throw sdk::Error(CAPSTAN_BUG,
                       text("the ranks disagree: this rank started ", what_, ", but rank ",
                            ranks_[r], " started ", theirs.text.data(),
                            same ? " with counts that differ for this pair" : ""),
                       false, ranks_[r]);
    }
  }
  bool is_fence() const override { return true; }

 private:
  std::vector<int32_t> ranks_;
  std::vector<Announcement> sent_, received_;
  std::vector<uint64_t> expected_;
  std::string what_;
};

}  // namespace

std::unique_ptr<Piece> check_piece(const comm::Request& request, const Links& links) {
  return std::make_unique<CheckPiece>(request, links);
}

Pieces plan(const comm::Request& request, const Links& links, const Settings& settings) {
  Pieces out;
  switch (request.operation) {
    case CAPSTAN_COMM_BARRIER:
      out.push_back(std::make_unique<BarrierPiece>());
      break;
    case CAPSTAN_COMM_BROADCAST:
      for (const comm::Item& item : request.items) {
        out.push_back(std::make_unique<BroadcastPiece>(request, item, settings));
      }
      break;
    case CAPSTAN_COMM_ALL_GATHER:
      for (const comm::Item& item : request.items) {
        out.push_back(std::make_unique<AllGatherPiece>(request, links, item, settings));
      }
      break;
    case CAPSTAN_COMM_ALL_TO_ALL:
      for (const comm::Item& item : request.items) {
        out.push_back(std::make_unique<AllToAllPiece>(request, links, item, settings));
      }
      break;
    case CAPSTAN_COMM_ALL_REDUCE:
      (settings.ordered ? plan_all_reduce : plan_library_all_reduce)(request, links, settings, out);
      break;
    default:
      (settings.ordered ? plan_reduce_scatter : plan_library_reduce_scatter)(request, links,
                                                                             settings, out);
      break;
  }
  return out;
}

}  // namespace capstan::mpi
