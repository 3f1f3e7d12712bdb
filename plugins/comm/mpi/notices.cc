#include "plugins/comm/mpi/notices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "plugins/comm/mpi/tags.h"

namespace capstan::mpi {
namespace {

// Groups that are never made keep no more memory than this.
constexpr size_t kMostKept = 256;

}  // namespace

void Notice::set_text(const std::string& words) {
  text.fill('\0');
  std::memcpy(text.data(), words.data(), std::min(words.size(), text.size() - 1));
}

void Notices::open(MPI_Comm world, int rank, int size) {
  world_ = world;
  rank_ = rank;
  sent_.assign(static_cast<size_t>(size), 0);
  post();
}

bool Notices::close() {
  if (request_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&request_);
    MPI_Wait(&request_, MPI_STATUS_IGNORE);
  }
  drop_sent();
  return sending_.empty();
}

void Notices::drop_sent() {
  std::erase_if(sending_, [](Sending& sending) {
    int done = 0;
    return MPI_Test(&sending.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
}

// Notices are news about failures: if the library cannot carry them there is nobody to tell, and the
// ranks' own deadlines remain. So errors end the channel and nothing else.
void Notices::post() {
  if (MPI_Irecv(&arriving_, sizeof arriving_, MPI_BYTE, MPI_ANY_SOURCE, kNoticeTag, world_,
                &request_) != MPI_SUCCESS) {
    request_ = MPI_REQUEST_NULL;
  }
}

void Notices::send(int to, const Notice& notice) {
  Sending& sending = sending_.emplace_back();
  sending.notice = notice;
  sending.notice.from = rank_;
  if (MPI_Isend(&sending.notice, sizeof(Notice), MPI_BYTE, to, kNoticeTag, world_,
                &sending.request) != MPI_SUCCESS) {
    sending_.pop_back();
    return;
  }
  ++sent_[static_cast<size_t>(to)];
}

bool Notices::receive(Notice& out) {
  drop_sent();
  if (request_ == MPI_REQUEST_NULL) return false;
  int arrived = 0;
  if (MPI_Test(&request_, &arrived, MPI_STATUS_IGNORE) != MPI_SUCCESS || arrived == 0) return false;
  ++received_;
  out = arriving_;
  out.text.back() = '\0';
  post();
  return true;
}

void Notices::keep(const Notice& notice) {
  if (kept_.size() >= kMostKept) kept_.erase(kept_.begin());
  kept_[notice.group].push_back(notice);
}

std::vector<Notice> Notices::kept_for(uint64_t group) {
  const auto found = kept_.find(group);
  if (found == kept_.end()) return {};
  std::vector<Notice> out = std::move(found->second);
  kept_.erase(found);
  return out;
}

}  // namespace capstan::mpi
