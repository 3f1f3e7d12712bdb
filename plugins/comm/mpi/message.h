// One send or recv: a header with the tag and small data inside, then what does not fit.
#ifndef CAPSTAN_PLUGINS_COMM_MPI_MESSAGE_H_
#define CAPSTAN_PLUGINS_COMM_MPI_MESSAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "plugins/comm/common/request.h"
#include "plugins/comm/mpi/links.h"
#include "plugins/comm/mpi/settings.h"

namespace capstan::mpi {

// MPI's tag is the channel, so messages match in order per (source, destination, channel). The tag
// travels in the header and is compared. [the library's lock]
class Message {
 public:
  Message(const comm::Request& request, const Links& links, const Settings& settings);

  void begin();
  // True when all of it has been sent or received. Throws when sender and receiver disagree.
  bool done();
  // After a failure: whether MPI has let go of this message's memory.
  bool settled() noexcept { return first_.settled() && rest_.settled(); }
  int32_t peer() const { return peer_; }  // world rank
  bool is_recv() const;
  // recv: the peer has begun to send.
  bool heard() const { return heard_; }

 private:
  static constexpr size_t kInline = 4096;
  struct Header {
    uint64_t bytes;
    uint64_t items;
    int32_t tag;
    capstan_dtype dtype;
    std::array<char, 104> text;
    std::array<char, kInline> data;
  };
  void send();
  void receive();
  void compare() const;
  void unpack() const;
  void post_items(bool send);

  const comm::Request& request_;
  const Links& links_;
  uint64_t largest_count_;
  int32_t peer_;
  uint64_t bytes_ = 0;
  Header header_{};
  Requests first_, rest_;
  bool heard_ = false;
};

}  // namespace capstan::mpi

#endif  // CAPSTAN_PLUGINS_COMM_MPI_MESSAGE_H_
