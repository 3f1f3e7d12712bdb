#include "plugins/comm/common/request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "plugins/comm/common/reduce.h"
#include "sdk/comm.h"
#include "sdk/error.h"
#include "sdk/program.h"

namespace capstan::comm {
namespace {

using sdk::text;

// FNV-1a over 64-bit words (Fowler, Noll, Vo): equality of requests, no defence against anyone.
class Fingerprint {
 public:
  void add(uint64_t word) {
    for (int byte = 0; byte < 8; ++byte) {
      value_ = (value_ ^ ((word >> (8 * byte)) & 0xffu)) * 0x100000001b3u;
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

const char* reduce_name(int32_t reduce) {
  switch (reduce) {
    case CAPSTAN_COMM_SUM:
      return "sum";
    case CAPSTAN_COMM_MAX:
      return "max";
    case CAPSTAN_COMM_AVERAGE:
      return "average";
    default:
      return "unknown reduction";
  }
}

// Checks one item of a request; a class for the names every message needs.
class ItemCheck {
 public:
  ItemCheck(const Request& request, size_t position, size_t index, size_t size)
      : request_(request), position_(position), index_(index), size_(size) {}

  Item check(const capstan_comm_item& raw) const {
    Item item;
    item.send = static_cast<const char*>(raw.send);
    item.recv = static_cast<char*>(raw.recv);
    item.count = raw.count;
    if (item.count > std::numeric_limits<uint64_t>::max() / 16) fail("counts more than any memory");
    switch (request_.operation) {
      case CAPSTAN_COMM_ALL_REDUCE:
        need(item.send, item.count, "send");
        need(item.recv, item.count, "recv");
        may_only_equal(item.send, item.count, item.recv, item.count, item.send);
        break;
      case CAPSTAN_COMM_REDUCE_SCATTER:
        reduce_scatter(raw, item);
        break;
      case CAPSTAN_COMM_ALL_GATHER:
        all_gather(raw, item);
        break;
      case CAPSTAN_COMM_BROADCAST:
        broadcast(item);
        break;
      case CAPSTAN_COMM_ALL_TO_ALL:
        all_to_all(raw, item);
        break;
      case CAPSTAN_COMM_SEND:
        need(item.send, item.count, "send");
        break;
      case CAPSTAN_COMM_RECV:
        need(item.recv, item.count, "recv");
        break;
      default:
        fail("belongs to an operation without data");
    }
    return item;
  }

 private:
  void reduce_scatter(const capstan_comm_item& raw, Item& item) const {
    item.send_slices = slices(raw.send_counts, item.count, "send_counts");
    const Slice own = item.send_slices[index_];
    need(item.send, item.count, "send");
    need(item.recv, own.count, "recv");
    may_only_equal(item.send, item.count, item.recv, own.count,
                   item.send + own.begin * request_.element);
  }
  void all_gather(const capstan_comm_item& raw, Item& item) const {
    item.recv_slices = slices(raw.recv_counts, item.count, "recv_counts");
    const Slice own = item.recv_slices[index_];
    need(item.recv, item.count, "recv");
    need(item.send, own.count, "send");
    may_only_equal(item.recv, item.count, item.send, own.count,
                   item.recv + own.begin * request_.element);
  }
  void broadcast(Item& item) const {
    const bool root = static_cast<size_t>(request_.root) == index_;
    if (root) {
      need(item.send, item.count, "send");
      if (item.recv == nullptr) item.recv = const_cast<char*>(item.send);
      may_only_equal(item.send, item.count, item.recv, item.count, item.send);
    } else {
      need(item.recv, item.count, "recv");
    }
  }
  void all_to_all(const capstan_comm_item& raw, Item& item) const {
    item.send_slices = slices(raw.send_counts, item.count, "send_counts");
    item.recv_slices = slices(raw.recv_counts, item.count, "recv_counts", /*any_sum=*/true);
    need(item.send, end(item.send_slices), "send");
    need(item.recv, end(item.recv_slices), "recv");
    may_only_equal(item.send, end(item.send_slices), item.recv, end(item.recv_slices), nullptr);
  }

  static uint64_t end(const std::vector<Slice>& slices) {
    return slices.back().begin + slices.back().count;
  }
  // Slices that follow one another. Without counts, `total` in even parts.
  std::vector<Slice> slices(const uint64_t* counts, uint64_t total, const char* name,
                            bool any_sum = false) const {
    if (counts == nullptr && total % size_ != 0) {
      fail(text("has count = ", total, ", which ", size_, " ranks cannot share evenly; give ",
                name));
    }
    std::vector<Slice> out(size_);
    uint64_t begin = 0;
    for (size_t r = 0; r < size_; ++r) {
      out[r] = {begin, counts == nullptr ? total / size_ : counts[r]};
      if (out[r].count > std::numeric_limits<uint64_t>::max() / 16 - begin) {
        fail(text("has ", name, " that add up to more than any memory"));
      }
      begin += out[r].count;
    }
    if (begin != total && !any_sum) {
      fail(text("has ", name, " that sum to ", begin, ", but count = ", total));
    }
    return out;
  }
  void need(const void* memory, uint64_t count, const char* name) const {
    if (memory == nullptr && count != 0) fail(text("has ", name, " = NULL"));
  }
  // Two buffers are disjoint, or `b` is exactly `allowed`.
  void may_only_equal(const char* a, uint64_t a_count, const char* b, uint64_t b_count,
                      const char* allowed) const {
    if (a_count == 0 || b_count == 0 || (allowed != nullptr && b == allowed)) return;
    const auto first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
    if (first < second + b_count * request_.element &&
        second < first + a_count * request_.element) {
      fail("has send and recv that overlap in a way the operation does not allow in place");
    }
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw sdk::usage_error(text(request_.describe(), ": item ", position_, " ", what));
  }

  const Request& request_;
  size_t position_, index_, size_;
};

void check_scalars(const Request& out, size_t index, size_t size) {
  const auto member = [&](int32_t value, const char* name) {
    if (value < 0 || static_cast<size_t>(value) >= size) {
      throw sdk::usage_error(text(out.describe(), ": ", name, " = ", value,
                                  " is no index of a group of ", size, " ranks"));
    }
  };
  if (out.operation != CAPSTAN_COMM_BARRIER && out.element == 0) {
    throw sdk::unsupported_error(
        text(out.describe(), ": dtype ", sdk::dtype_name(out.dtype), " cannot be communicated"));
  }
  if (out.reduces() && !can_reduce(out.dtype, out.reduce)) {
    throw sdk::unsupported_error(text(out.describe(), ": no ", reduce_name(out.reduce), " of ",
                                      sdk::dtype_name(out.dtype), " exists"));
  }
  if (out.operation == CAPSTAN_COMM_BROADCAST) member(out.root, "root");
  if (!out.is_message()) return;
  member(out.peer, "peer");
  if (static_cast<size_t>(out.peer) == index) {
    throw sdk::usage_error(text(out.describe(), ": peer = ", out.peer, " is the rank itself"));
  }
  if (out.channel < 0) {
    throw sdk::usage_error(text(out.describe(), ": channel = ", out.channel, " is negative"));
  }
}

}  // namespace

uint64_t Request::elements() const {
  uint64_t sum = 0;
  for (const Item& item : items) sum += item.count;
  return sum;
}

std::string Request::describe() const {
  std::string out = sdk::operation_name(operation);
  if (reduces()) out += text(" (", reduce_name(reduce), ")");
  if (operation == CAPSTAN_COMM_BROADCAST) out += text(" from index ", root);
  if (operation == CAPSTAN_COMM_SEND) out += text(" to index ", peer, " on channel ", channel);
  if (operation == CAPSTAN_COMM_RECV) out += text(" from index ", peer, " on channel ", channel);
  if (operation != CAPSTAN_COMM_BARRIER) {
    out += text(" of ", elements(), " ", sdk::dtype_name(dtype));
    if (items.size() != 1) out += text(" in ", items.size(), " items");
  }
  return label.empty() ? out : text(out, " '", label, "'");
}

uint64_t Request::fingerprint() const {
  Fingerprint f;
  f.add(static_cast<uint64_t>(operation));
  f.add(reduces() ? static_cast<uint64_t>(reduce) : 0);
  f.add(operation == CAPSTAN_COMM_BARRIER ? 0 : (uint64_t{dtype.code} << 8 | dtype.bits));
  f.add(operation == CAPSTAN_COMM_BROADCAST ? static_cast<uint64_t>(root) : 0);
  f.add(items.size());
  for (const char c : label) f.add(static_cast<unsigned char>(c));
  for (const Item& item : items) {
    if (operation == CAPSTAN_COMM_ALL_TO_ALL) continue;
    f.add(item.count);
    for (const Slice& s : item.send_slices) f.add(s.count);
    for (const Slice& s : item.recv_slices) f.add(s.count);
  }
  return f.value();
}

uint64_t Request::sends_to(size_t index) const {
  Fingerprint f;
  if (operation == CAPSTAN_COMM_ALL_TO_ALL) {
    for (const Item& item : items) f.add(item.send_slices[index].count);
  }
  return f.value();
}

uint64_t Request::expects_from(size_t index) const {
  Fingerprint f;
  if (operation == CAPSTAN_COMM_ALL_TO_ALL) {
    for (const Item& item : items) f.add(item.recv_slices[index].count);
  }
  return f.value();
}

Request check_request(const capstan_comm_request& raw, size_t index, size_t size) {
  Request out;
  out.operation = raw.operation;
  out.reduce = raw.reduce;
  out.dtype = raw.dtype;
  out.element = element_bytes(raw.dtype);
  out.root = raw.root;
  out.peer = raw.peer;
  out.channel = raw.channel;
  out.tag = raw.tag;
  out.label = raw.label == nullptr ? "" : raw.label;
  if (raw.operation < CAPSTAN_COMM_ALL_REDUCE || raw.operation > CAPSTAN_COMM_BARRIER) {
    throw sdk::unsupported_error(
        text("operation ", raw.operation, " of '", out.label, "' is not one of comm/1"));
  }
  check_scalars(out, index, size);
  std::vector<Item> items;
  for (size_t i = 0; i < raw.item_count; ++i) {
    items.push_back(ItemCheck(out, i, index, size).check(sdk::item_of(raw.items, i)));
  }
  out.items = std::move(items);
  return out;
}

void Volume::add(const Request& finished) {
  const uint64_t bytes = finished.elements() * finished.element;
  bytes_[static_cast<size_t>(finished.operation)].fetch_add(bytes, std::memory_order_relaxed);
}

void Volume::tell(capstan_comm_progress& out) const {
  if (out.struct_size < offsetof(capstan_comm_progress, bytes) + sizeof out.bytes) return;
  for (size_t i = 0; i < bytes_.size(); ++i) {
    out.bytes[i] = bytes_[i].load(std::memory_order_relaxed);
  }
}

size_t check_members(std::span<const int32_t> ranks, int32_t rank, int32_t world) {
  std::vector<int32_t> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] < 0 || sorted[i] >= world) {
      throw sdk::usage_error(
          text("a group names rank ", sorted[i], ", but the world has ", world, " ranks"));
    }
    if (i > 0 && sorted[i] == sorted[i - 1]) {
      throw sdk::usage_error(text("a group names rank ", sorted[i], " twice"));
    }
  }
  const auto me = std::find(ranks.begin(), ranks.end(), rank);
  if (me == ranks.end()) {
    throw sdk::usage_error(text("rank ", rank, " makes a group that it is no member of"));
  }
  return static_cast<size_t>(me - ranks.begin());
}

}  // namespace capstan::comm
