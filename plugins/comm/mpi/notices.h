// Short messages between the ranks beside the collectives: who gave up, who left, who has come how far.
#ifndef CAPSTAN_PLUGINS_COMM_MPI_NOTICES_H_
#define CAPSTAN_PLUGINS_COMM_MPI_NOTICES_H_

#include <mpi.h>

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

namespace capstan::mpi {

enum class NoticeKind : int32_t {
  kFailed,  // the group ended on the sender: code, culprit, text
  kLeft,  // the sender destroyed the group after starting `position` collectives, and `messages` to
          // the rank that is told
  kAsk,   // how far are you?
  kAnswer,  // position: collectives started, kNoGroup; text: the latest label
};

struct Notice {
  static constexpr uint64_t kNoGroup = ~uint64_t{0};

  uint64_t group = 0;  // Group::id
  NoticeKind kind = NoticeKind::kFailed;
  int32_t from = -1;  // world rank
  int32_t code = 0;
  int32_t culprit = -1;
  uint64_t position = 0;
  uint64_t messages = 0;
  std::array<char, 280> text{};

  void set_text(const std::string& words);
};

// The channel for notices: one posted receive from anyone, sends that nobody waits for. Works on the
// world's communicator, so a notice for a group that is gone, or not yet made, is never lost in a
// communicator that MPI may have given to another. [the library's lock for everything]
class Notices {
 public:
  void open(MPI_Comm world, int rank, int size);
  // Notices sent so far to each rank of the world, and received from all.
  const std::vector<int>& sent() const { return sent_; }
  int received() const { return received_; }
  // False while some send is not through; call again.
  bool close();

  void send(int to, const Notice& notice);
  // The next notice, if one has arrived. Completed sends are dropped on the way.
  bool receive(Notice& out);

  // Notices for groups this rank has not made yet.
  void keep(const Notice& notice);
  std::vector<Notice> kept_for(uint64_t group);

 private:
  struct Sending {
    Notice notice;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  void post();
  void drop_sent();

  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::vector<int> sent_;
  int received_ = 0;
  Notice arriving_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::list<Sending> sending_;  // addresses stay while MPI reads them
  std::map<uint64_t, std::vector<Notice>> kept_;
};

}  // namespace capstan::mpi

#endif  // CAPSTAN_PLUGINS_COMM_MPI_NOTICES_H_
