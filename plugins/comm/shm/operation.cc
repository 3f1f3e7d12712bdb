#include "plugins/comm/shm/operation.h"

#include <algorithm>
#include <cstring>

namespace capstan::shm {
namespace {

constexpr uint32_t kMappedEagerBytes = 2048;

std::atomic<uint64_t>& identities() {
  static std::atomic<uint64_t> next{0};
  return next;
}

uint64_t total(const std::vector<comm::Slice>& slices) {
  return slices.empty() ? 0 : slices.back().begin + slices.back().count;
}

// Elements of an item's buffers on this rank.
uint64_t sent(const comm::Request& q, const comm::Item& item, size_t index) {
  switch (q.operation) {
    case CAPSTAN_COMM_ALL_GATHER:
      return item.recv_slices[index].count;
    case CAPSTAN_COMM_BROADCAST:
      return static_cast<size_t>(q.root) == index ? item.count : 0;
    case CAPSTAN_COMM_ALL_TO_ALL:
      return total(item.send_slices);
    case CAPSTAN_COMM_RECV:
      return 0;
    default:
      return item.count;
  }
}
uint64_t received(const comm::Request& q, const comm::Item& item, size_t index) {
  switch (q.operation) {
    case CAPSTAN_COMM_REDUCE_SCATTER:
      return item.send_slices[index].count;
    case CAPSTAN_COMM_ALL_TO_ALL:
      return total(item.recv_slices);
    case CAPSTAN_COMM_SEND:
      return 0;
    default:
      return item.count;
  }
}

uint64_t mix(uint64_t value, uint64_t word) { return (value ^ word) * 0x100000001b3u; }

// What must be equal on the ranks that take part. Of a collective: all of the request but where its
// memory lies, the label too, as ranks that name an operation differently mean different ones. Of a
// message: its elements.
uint64_t sign(const comm::Request& q) {
  uint64_t value = q.is_message() ? mix(q.dtype.code, q.dtype.bits) : q.fingerprint();
  if (q.is_message()) {
    for (const comm::Item& item : q.items) value = mix(value, item.count);
  } else {
    for (const char c : q.label) value = mix(value, static_cast<unsigned char>(c));
  }
  return value;
}

}  // namespace

Given given(const comm::Request& q, size_t item, size_t index) {
  const comm::Item& i = q.items[item];
  return {i.send, sent(q, i, index) * q.element};
}

Operation::Operation(OwnHome& home, comm::Request checked, size_t index_in_group, size_t group_size,
                     uint32_t eager_limit)
    : request(std::move(checked)),
      index(index_in_group),
      members(group_size),
      identity(identities().fetch_add(1) + 1),
      signature(sign(request)),
      text_(request.describe()) {
  for (size_t i = 0; i < request.items.size(); ++i) {
    payload += padded(given(request, i, index).bytes);
    largest += request.items[i].count * request.element;
  }
  write_record(home);
  // Mapped memory is cheap to reach: there a copy to the slot pays only where nothing else costs.
  const bool direct = (flags & kMapped) != 0 && !request.is_message();
  if (payload <= (direct ? std::min(eager_limit, kMappedEagerBytes) : eager_limit)) flags |= kEager;
}

void Operation::write_record(OwnHome& home) {
  const size_t n = members;
  record_bytes = sizeof(OperationRecord) +
                 request.items.size() * OperationRecord::item_bytes(request.operation, n);
  offset = home.allocate(record_bytes);
  record_ = reinterpret_cast<OperationRecord*>(home.at(offset));
  record_->signature = signature;
  record_->operation = request.operation;
  record_->items = static_cast<uint32_t>(request.items.size());
  record_->members = static_cast<uint32_t>(n);
  text_.copy(record_->text, sizeof record_->text - 1);
  bool mapped = true;
  for (size_t i = 0; i < request.items.size(); ++i) {
    const comm::Item& item = request.items[i];
    ItemRecord& out = record_->item_records()[i];
    const uint64_t send_bytes = sent(request, item, index) * request.element;
    const uint64_t recv_bytes = received(request, item, index) * request.element;
    out.send = home.place(item.send, send_bytes);
    out.recv = home.place(item.recv, recv_bytes);
    mapped = mapped && (send_bytes == 0 || out.send.registration != 0) &&
             (recv_bytes == 0 || out.recv.registration != 0);
    if (request.operation != CAPSTAN_COMM_ALL_TO_ALL) continue;
    for (size_t r = 0; r < n; ++r) {
      record_->part_counts(i)[r] = item.send_slices[r].count;
      record_->part_counts(i)[n + r] = item.recv_slices[r].count;
    }
  }
  if (mapped) flags |= kMapped;
  record_->identity = identity;
}

}  // namespace capstan::shm
