#include "plugins/comm/mpi/message.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "plugins/comm/mpi/library.h"
#include "sdk/program.h"

namespace capstan::mpi {

using sdk::text;

Message::Message(const comm::Request& request, const Links& links, const Settings& settings)
    : request_(request),
      links_(links),
      largest_count_(settings.largest_count),
      peer_(links.ranks[static_cast<size_t>(request.peer)]) {
  if (request.channel > links.largest_tag) {
    throw sdk::unsupported_error(text(request.describe(), ": channel = ", request.channel,
                                      " is above this MPI's largest tag, ", links.largest_tag));
  }
  bytes_ = request.elements() * request.element;
  if (request.operation == CAPSTAN_COMM_RECV) return;
  header_.bytes = bytes_;
  header_.items = request.items.size();
  header_.tag = request.tag;
  header_.dtype = request.dtype;
  std::strncpy(header_.text.data(), request.describe().c_str(), header_.text.size() - 1);
}

bool Message::is_recv() const { return request_.operation == CAPSTAN_COMM_RECV; }

void Message::begin() {
  heard_ = false;
  is_recv() ? receive() : send();
}

void Message::send() {
  size_t size = offsetof(Header, data);
  if (bytes_ <= kInline) {
    char* to = header_.data.data();
    for (const comm::Item& item : request_.items) {
      const size_t bytes = item.count * request_.element;
      if (bytes != 0) std::memcpy(to, item.send, bytes);
      to += bytes;
    }
    size += bytes_;
  }
  check(MPI_Isend(&header_, static_cast<int>(size), MPI_BYTE, request_.peer, request_.channel,
                  links_.messages, first_.add()),
        request_.describe(), peer_);
  if (bytes_ > kInline) post_items(/*send=*/true);
}

void Message::receive() {
  check(MPI_Irecv(&header_, sizeof header_, MPI_BYTE, request_.peer, request_.channel,
                  links_.messages, first_.add()),
        request_.describe(), peer_);
  if (bytes_ > kInline) post_items(/*send=*/false);
}

void Message::post_items(bool send) {
  const MPI_Datatype type = carrier(request_.element);
  for (const comm::Item& item : request_.items) {
    for (uint64_t at = 0; at < item.count; at += largest_count_) {
      const int count = static_cast<int>(std::min(largest_count_, item.count - at));
      const size_t offset = at * request_.element;
      check(send ? MPI_Isend(item.send + offset, count, type, request_.peer, request_.channel,
                             links_.messages, rest_.add())
                 : MPI_Irecv(item.recv + offset, count, type, request_.peer, request_.channel,
                             links_.messages, rest_.add()),
            request_.describe(), peer_);
    }
  }
}

void Message::compare() const {
  const bool same_dtype =
      header_.dtype.code == request_.dtype.code && header_.dtype.bits == request_.dtype.bits;
  if (header_.tag == request_.tag && header_.bytes == bytes_ && same_dtype &&
      header_.items == request_.items.size()) {
    return;
  }
  throw sdk::Error(CAPSTAN_BUG,
                   text("the ranks disagree: this rank started ", request_.describe(), " with tag ",
                        request_.tag, ", but rank ", peer_, " started ", header_.text.data(),
                        " with tag ", header_.tag),
                   false, peer_);
}

void Message::unpack() const {
  const char* from = header_.data.data();
  for (const comm::Item& item : request_.items) {
    const size_t bytes = item.count * request_.element;
    if (bytes != 0) std::memcpy(item.recv, from, bytes);
    from += bytes;
  }
}

bool Message::done() {
  if (is_recv() && !heard_) {
    if (!first_.done("recv")) return false;
    heard_ = true;
    compare();
    if (bytes_ <= kInline) unpack();
  }
  return first_.done("send") && rest_.done(is_recv() ? "recv" : "send");
}

}  // namespace capstan::mpi
