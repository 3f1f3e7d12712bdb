#include "tests/comm/collective_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "sdk/error.h"
#include "sdk/program.h"

namespace capstan::test {
namespace {

constexpr size_t kGuardBytes = 64;
constexpr char kPattern = 0x5a;

const char* Name(int32_t operation) {
  static const char* const kNames[] = {"?",          "all_reduce", "reduce_scatter",
                                       "all_gather", "broadcast",  "all_to_all",
                                       "send",       "recv",       "barrier"};
  return kNames[operation];
}

uint64_t Sum(const std::vector<uint64_t>& parts, size_t end) {
  return std::accumulate(parts.begin(), parts.begin() + static_cast<ptrdiff_t>(end), uint64_t{0});
}

}  // namespace

char* Workplace::take(size_t bytes) {
  const size_t whole = (bytes + 63) / 64 * 64;
  if (arena_ == nullptr) {
    heap_.emplace_back(whole + 64);
    char* raw = heap_.back().data();
    return raw + (64 - reinterpret_cast<uintptr_t>(raw) % 64) % 64;
  }
  if (used_ + whole > bytes_) throw std::logic_error("the tests' registered memory is too small");
  used_ += whole;
  return arena_ + used_ - whole;
}

void Workplace::clear() {
  used_ = 0;
  heap_.clear();
}

std::string Collective::describe() const {
  static const char* const kReduce[] = {"sum", "max", "average"};
  std::string out = sdk::text(Name(operation), ' ', sdk::dtype_name(dtype));
  if (operation == CAPSTAN_COMM_ALL_REDUCE || operation == CAPSTAN_COMM_REDUCE_SCATTER) {
    out += sdk::text(' ', kReduce[reduce]);
  }
  if (operation == CAPSTAN_COMM_BROADCAST) out += sdk::text(" root ", root);
  for (const uint64_t count : counts) out += sdk::text(' ', count);
  if (uneven) out += " uneven";
  if (in_place) out += " in place";
  if (real) out += " reals";
  return out;
}

CollectiveCase::CollectiveCase(const Collective& what, const std::vector<int32_t>& ranks,
                               size_t index, Workplace& place)
    : what_(what), ranks_(ranks), index_(index), label_(what.describe()) {
  for (size_t i = 0; i < what_.counts.size(); ++i) lay_out(i, place);
  set_request();
}

// What goes from one member to another in ALL_TO_ALL.
uint64_t CollectiveCase::exchanged(size_t i, size_t from, size_t to) const {
  const uint64_t n = ranks_.size();
  const uint64_t even = what_.counts[i] / n;
  return what_.uneven ? even * (Mix(i, from, to) % 4) / 3 : even;
}

std::vector<uint64_t> CollectiveCase::parts(size_t i) const {
  const uint64_t n = ranks_.size();
  if (what_.uneven) return UnevenParts(what_.counts[i], n, i + what_.counts[i]);
  return std::vector<uint64_t>(n, what_.counts[i] / n);
}

CollectiveCase::Item CollectiveCase::sized_item(size_t i) const {
  Item item;
  item.send_count = item.recv_count = what_.counts[i];
  if (what_.operation == CAPSTAN_COMM_REDUCE_SCATTER) {
    item.send_parts = parts(i);
    item.send_count = Sum(item.send_parts, ranks_.size());
    item.recv_count = item.send_parts[index_];
  } else if (what_.operation == CAPSTAN_COMM_ALL_GATHER) {
    item.recv_parts = parts(i);
    item.recv_count = Sum(item.recv_parts, ranks_.size());
    item.send_count = item.recv_parts[index_];
  } else if (what_.operation == CAPSTAN_COMM_ALL_TO_ALL) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      item.send_parts.push_back(exchanged(i, index_, r));
      item.recv_parts.push_back(exchanged(i, r, index_));
    }
    item.send_count = Sum(item.send_parts, ranks_.size());
    item.recv_count = Sum(item.recv_parts, ranks_.size());
  }
  return item;
}

void CollectiveCase::lay_out(size_t i, Workplace& place) {
  Item item = sized_item(i);
  const size_t element = ElementBytes(what_.dtype);
  const uint64_t whole = std::max(item.send_count, item.recv_count);
  if (!what_.in_place) {
    item.send = place.take(item.send_count * element);
    item.recv = place.take(item.recv_count * element + kGuardBytes);
    item.guard = item.recv + item.recv_count * element;
  } else {
    char* tensor = place.take(whole * element + kGuardBytes);
    item.send = item.recv = tensor;
    if (what_.operation == CAPSTAN_COMM_REDUCE_SCATTER) {
      item.recv += Sum(item.send_parts, index_) * element;
    } else if (what_.operation == CAPSTAN_COMM_ALL_GATHER) {
      item.send += Sum(item.recv_parts, index_) * element;
    }
    item.guard = tensor + whole * element;
  }
  items_.push_back(std::move(item));
}

void CollectiveCase::set_request() {
  for (const Item& item : items_) {
    auto raw = sdk::sized<capstan_comm_item>();
    raw.send = item.send_count == 0 ? nullptr : item.send;
    raw.recv = item.recv_count == 0 ? nullptr : item.recv;
    raw.count = what_.operation == CAPSTAN_COMM_ALL_GATHER ? item.recv_count : item.send_count;
    if (what_.uneven) {
      if (!item.send_parts.empty()) raw.send_counts = item.send_parts.data();
      if (!item.recv_parts.empty()) raw.recv_counts = item.recv_parts.data();
    }
    raw_items_.push_back(raw);
  }
  request_ = sdk::sized<capstan_comm_request>();
  request_.operation = what_.operation;
  request_.reduce = what_.reduce;
  request_.dtype = what_.dtype;
  request_.root = what_.root;
  request_.item_count = raw_items_.size();
  request_.items = raw_items_.data();
  request_.label = label_.c_str();
}

Values CollectiveCase::values(uint64_t round) const {
  return {what_.dtype, round * 1000 + static_cast<uint64_t>(what_.operation), what_.real};
}

// The whole tensor's number of the first element that member r sends.
uint64_t CollectiveCase::first_sent(size_t i, size_t r) const {
  return what_.operation == CAPSTAN_COMM_ALL_GATHER ? Sum(items_[i].recv_parts, r) : 0;
}

void CollectiveCase::fill(uint64_t round) {
  const Values v = values(round);
  for (size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    std::memset(item.recv, kPattern, item.recv_count * ElementBytes(what_.dtype));
    std::memset(item.guard, kPattern, kGuardBytes);
    const uint64_t first = first_sent(i, index_);
    for (uint64_t k = 0; k < item.send_count; ++k) {
      Store(what_.dtype, item.send, k, v.at(ranks_[index_], i, first + k));
    }
  }
}

double CollectiveCase::reduced(const Values& v, size_t i, uint64_t element) const {
  double all[64];
  for (size_t r = 0; r < ranks_.size(); ++r) all[r] = v.at(ranks_[r], i, element);
  return Reduce(what_.dtype, what_.reduce, std::span(all, ranks_.size()));
}

double CollectiveCase::expected(const Values& v, size_t i, uint64_t at) const {
  const Item& item = items_[i];
  switch (what_.operation) {
    case CAPSTAN_COMM_ALL_REDUCE:
      return reduced(v, i, at);
    case CAPSTAN_COMM_REDUCE_SCATTER:
      return reduced(v, i, Sum(item.send_parts, index_) + at);
    case CAPSTAN_COMM_BROADCAST:
      return v.at(ranks_[static_cast<size_t>(what_.root)], i, at);
    default:
      break;
  }
  size_t from = 0;
  while (at >= item.recv_parts[from]) at -= item.recv_parts[from++];
  if (what_.operation == CAPSTAN_COMM_ALL_GATHER) {
    return v.at(ranks_[from], i, first_sent(i, from) + at);
  }
  uint64_t before = 0;
  for (size_t to = 0; to < index_; ++to) before += exchanged(i, from, to);
  return v.at(ranks_[from], i, before + at);
}

// As the dtype holds it. Small integers are exact in all of them.
double CollectiveCase::rounded(double value) const {
  if (!what_.real && what_.reduce != CAPSTAN_COMM_AVERAGE) return value;
  char memory[8];
  Store(what_.dtype, memory, 0, value);
  return Load(what_.dtype, memory, 0);
}

// Averages over a number of ranks that is no power of two may be rounded twice.
bool CollectiveCase::same(double got, double want) const {
  if (got == want) return true;
  if (what_.reduce != CAPSTAN_COMM_AVERAGE || what_.real) return false;
  const double unit = what_.dtype.bits == 64                     ? 0x1p-52
                      : what_.dtype.bits == 32                   ? 0x1p-23
                      : what_.dtype.code == CAPSTAN_DTYPE_BFLOAT ? 0x1p-7
                                                                 : 0x1p-10;
  return std::fabs(got - want) <= std::fabs(want) * unit;
}

std::string CollectiveCase::check(uint64_t round) const {
  const Values v = values(round);
  for (size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    for (uint64_t k = 0; k < item.recv_count; ++k) {
      const double want = rounded(expected(v, i, k)), got = Load(what_.dtype, item.recv, k);
      if (!same(got, want)) {
        return sdk::text(label_, ", item ", i, ", round ", round, ": element ", k, " is ", got,
                         ", not ", want);
      }
    }
    for (size_t g = 0; g < kGuardBytes; ++g) {
      if (item.guard[g] != kPattern) {
        return sdk::text(label_, ", item ", i, ": wrote past the end of recv");
      }
    }
  }
  return "";
}

}  // namespace capstan::test
