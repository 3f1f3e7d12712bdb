#include "plugins/comm/shm/records.h"

#include <utility>

namespace capstan::shm {

void ReleasedRecords::add(const OperationPtr& op, bool shared) {
  const bool seen = shared && op->ever_started && !op->request.is_message();
  const bool sent = op->request.operation == CAPSTAN_COMM_SEND && (op->flags & kEager) == 0;
  released_.push_back(
      {seen ? op->sequence + 1 : 0, op->offset, op->record_bytes, sent ? op : nullptr});
}

void ReleasedRecords::collect(const Board& board, OwnHome& home) {
  std::erase_if(released_, [&](const Released& r) {
    if (read_by_peers(r, board)) return false;
    home.free(r.offset, r.bytes);
    return true;
  });
}

bool ReleasedRecords::read_by_peers(const Released& released, const Board& board) {
  if (released.message != nullptr) {
    const Operation& op = *released.message;
    if (op.record().taken.load() == op.flight || board.away(static_cast<size_t>(op.request.peer))) {
      return false;
    }
    // One that had no room when this rank destroyed the group never goes out.
    return op.state.load() != Operation::kQueued || !board.away(board.index());
  }
  for (size_t r = 0; released.needed > 0 && r < board.size(); ++r) {
    if (board.member(r).consumed.load() < released.needed && !board.away(r)) return true;
  }
  return false;
}

void Leftovers::add(std::unique_ptr<Board> board, ReleasedRecords records, OwnHome& home) {
  records.collect(*board, home);
  if (records.empty()) return;
  const std::lock_guard lock(mutex_);
  left_.push_back({std::move(board), std::move(records)});
}

void Leftovers::collect(OwnHome& home) {
  const std::lock_guard lock(mutex_);
  for (Left& left : left_) left.records.collect(*left.board, home);
  std::erase_if(left_, [](const Left& left) { return left.records.empty(); });
}

}  // namespace capstan::shm
