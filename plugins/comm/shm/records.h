// Records of released operations, kept in this rank's home until no peer reads them any more.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_RECORDS_H_
#define CAPSTAN_PLUGINS_COMM_SHM_RECORDS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "plugins/comm/shm/board.h"
#include "plugins/comm/shm/home.h"
#include "plugins/comm/shm/operation.h"

namespace capstan::shm {

// Those of one group: collectives until all members have consumed them, messages until their data has
// been taken.
class ReleasedRecords {
 public:
  // shared: peers may have seen it.
  void add(const OperationPtr& op, bool shared);
  // Frees what nobody reads any more.
  void collect(const Board& board, OwnHome& home);
  bool empty() const { return released_.empty(); }

 private:
  struct Released {
    uint64_t needed;  // operations that a member has consumed when it does not read this any more
    uint64_t offset, bytes;
    OperationPtr message;  // a large send; else nullptr
  };
  static bool read_by_peers(const Released& released, const Board& board);

  std::vector<Released> released_;
};

// Those of groups that this rank has destroyed: other members may be about to read what they had
// started together. [any thread]
class Leftovers {
 public:
  void add(std::unique_ptr<Board> board, ReleasedRecords records, OwnHome& home);
  void collect(OwnHome& home);

 private:
  struct Left {
    std::unique_ptr<Board> board;
    ReleasedRecords records;
  };

  std::mutex mutex_;
  std::vector<Left> left_;
};

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_RECORDS_H_
