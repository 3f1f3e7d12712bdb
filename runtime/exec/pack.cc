#include "runtime/exec/pack.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace capstan {
namespace {

constexpr int kBucket = 64;  // launches

// Spans are bucketed by the launches they cross, so only those that may meet are compared. `spans`
// begin at launch 0 and are all there is.
std::vector<int64_t> PackStretch(const std::vector<Span>& spans, size_t launches) {
  std::vector<int> order(spans.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const Span &x = spans[a], &y = spans[b];
    if (x.bytes != y.bytes) return x.bytes > y.bytes;
    return x.first != y.first ? x.first < y.first : a < b;
  });
  std::vector<int64_t> offsets(spans.size(), 0);
  std::vector<std::vector<int>> alive(launches / kBucket + 1);
  std::vector<int> stamp(spans.size(), -1);
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (const int index : order) {
    const Span& span = spans[index];
    taken.clear();
    for (int b = span.first / kBucket; b <= span.last / kBucket; ++b) {
      for (const int other : alive[b]) {
        const Span& o = spans[other];
        if (stamp[other] == index || o.last < span.first || o.first > span.last) continue;
        stamp[other] = index;
        taken.emplace_back(offsets[other], offsets[other] + o.bytes);
      }
    }
    std::sort(taken.begin(), taken.end());
    int64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (begin - offset >= span.bytes) break;
      offset = std::max(offset, end);
    }
    offsets[index] = offset;
    for (int b = span.first / kBucket; b <= span.last / kBucket; ++b) alive[b].push_back(index);
  }
  return offsets;
}

// The first launch of the stretch that each launch is in: a stretch ends where nothing lives on.
std::vector<int32_t> StretchOf(const std::vector<Span>& spans, size_t launches) {
  std::vector<int64_t> crossing(launches + 1, 0);  // spans alive both before and at a launch
  for (const Span& s : spans) {
    ++crossing[s.first + 1];
    --crossing[s.last + 1];
  }
  std::vector<int32_t> begin(launches, 0);
  int64_t sum = 0;
  for (size_t i = 1; i < launches; ++i) {
    sum += crossing[i];
    begin[i] = sum == 0 ? static_cast<int32_t>(i) : begin[i - 1];
  }
  return begin;
}

uint64_t Hash(const std::vector<Span>& spans) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x9e3779b97f4a7c15u; };
  for (const Span& s : spans) {
    mix(static_cast<uint64_t>(s.bytes));
    mix(static_cast<uint64_t>(s.first) << 32 | static_cast<uint32_t>(s.last));
    hash ^= hash >> 29;
  }
  return hash;
}

struct Packed {
  std::vector<Span> spans;
  std::vector<int64_t> offsets;
};

}  // namespace

std::vector<int64_t> PackSpans(const std::vector<Span>& spans, size_t launches) {
  const std::vector<int32_t> stretch = StretchOf(spans, launches);
  std::vector<int> members(spans.size());  // by stretch, then as given
  std::iota(members.begin(), members.end(), 0);
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return stretch[spans[a].first] < stretch[spans[b].first]; });
  std::vector<int64_t> offsets(spans.size(), 0);
  std::unordered_map<uint64_t, std::vector<Packed>> done;
  for (size_t i = 0; i < members.size();) {
    const int32_t begin = stretch[spans[members[i]].first];
    std::vector<Span> alone;
    int32_t last = 0;
    size_t end = i;
    for (; end < members.size() && stretch[spans[members[end]].first] == begin; ++end) {
      const Span& s = spans[members[end]];
      alone.push_back({s.bytes, s.first - begin, s.last - begin});
      last = std::max(last, s.last - begin);
    }
    std::vector<Packed>& alike = done[Hash(alone)];
    auto found =
        std::find_if(alike.begin(), alike.end(), [&](const Packed& p) { return p.spans == alone; });
    if (found == alike.end()) {
      std::vector<int64_t> packed = PackStretch(alone, static_cast<size_t>(last) + 1);
      found = alike.insert(alike.end(), {std::move(alone), std::move(packed)});
    }
    for (size_t j = i; j < end; ++j) offsets[members[j]] = found->offsets[j - i];
    i = end;
  }
  return offsets;
}

}  // namespace capstan
