// Moving elements: copies, slices, permutations. One implementation for every dtype of 1, 2, 4 or 8
// bytes, as the elements are not looked at.
#include "kernels/cpu/layout.h"

#include <vector>

#include "kernels/cpu/elementwise.h"
#include "plugins/device/cpu/kernel.h"

namespace capstan::cpu_device {
namespace {

// Element size of the operands, which must all have one dtype.
size_t moved_size(const Request& r) {
  const Operand& y = r.out(0);
  const size_t bytes = y.element_size();
  if (y.dtype.bits % 8 != 0 || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)) {
    r.refuse_dtypes();
  }
  for (size_t i = 0; i < r.input_count(); ++i) {
    if (!r.in(i).is(y.dtype)) r.refuse_dtypes();
  }
  return bytes;
}

void expect_rank(const Request& r, const Operand& x) {
  if (x.rank() <= cpu::kMaxRank) return;
  throw sdk::unsupported_error(
      sdk::text("device cpu: ", r.describe(), " has more than ", cpu::kMaxRank, " dims"));
}

// Elements of dims [from, to).
int64_t extent(const Operand& x, int from, int to) {
  int64_t n = 1;
  for (int d = from; d < to; ++d) n *= x.dim(d);
  return n;
}

// copy, reshape, reinterpret, copy_to_group: nothing but bytes, and not even those in place.
void copy(const Request& r, capstan_kernel* out) {
  moved_size(r);
  r.expect_out(0, r.in(0).size());
  const int64_t bytes = r.in(0).bytes();
  emit(r, out, "copy", [=](const Launch& l) {
    if (l.in<char>(0) != l.out<char>(0)) cpu::copy(bytes, l.in<char>(0), l.out<char>(0));
  });
}

void transpose(const Request& r, capstan_kernel* out) {
  const Operand& x = r.in(0);
  expect_rank(r, x);
  const std::vector<int64_t> perm = r.attrs().get_ints("perm");
  cpu::PermuteParams p;
  p.rank = x.rank();
  p.element_size = moved_size(r);
  r.require(perm.size() == x.shape.size(), "perm must name every dim");
  bool seen[cpu::kMaxRank] = {};
  for (int d = 0; d < p.rank; ++d) {
    const int64_t from = perm[static_cast<size_t>(d)];
    r.require(from >= 0 && from < p.rank && !seen[from], "perm must name every dim once");
    seen[from] = true;
    p.perm[d] = static_cast<int>(from);
    p.shape[d] = x.dim(d);
  }
  r.expect_out(0, x.size());
  emit(r, out, "transpose",
       [=](const Launch& l) { cpu::permute(p, l.in<char>(0), l.out<char>(0)); });
}

// The part of `whole` that starts at attribute `start` of dim `dim` and is as long as `part`.
cpu::SliceParams slice_params(const Request& r, const Operand& whole, const Operand& part) {
  expect_rank(r, whole);
  const int dim = r.dim("dim", whole);
  const int64_t start = r.need_int("start");
  cpu::SliceParams p;
  p.rank = whole.rank();
  p.element_size = moved_size(r);
  r.require(part.rank() == p.rank, "x and y must have the same rank");
  for (int d = 0; d < p.rank; ++d) {
    p.shape[d] = whole.dim(d);
    p.size[d] = part.dim(d);
    p.start[d] = d == dim ? start : 0;
    r.require(d == dim ? start >= 0 && start + p.size[d] <= p.shape[d] : p.size[d] == p.shape[d],
              "the part must lie within the whole");
  }
  return p;
}

void slice(const Request& r, capstan_kernel* out) {
  const cpu::SliceParams p = slice_params(r, r.in(0), r.out(0));
  emit(r, out, "slice", [=](const Launch& l) { cpu::slice(p, l.in<char>(0), l.out<char>(0)); });
}

void pad(const Request& r, capstan_kernel* out) {
  const cpu::SliceParams p = slice_params(r, r.out(0), r.in(0));
  emit(r, out, "pad", [=](const Launch& l) { cpu::pad(p, l.in<char>(0), l.out<char>(0)); });
}

void concat(const Request& r, capstan_kernel* out) {
  const Operand& y = r.out(0);
  const int dim = r.dim("dim", y);
  cpu::ConcatParams p;
  p.outer = extent(y, 0, dim);
  p.inner = extent(y, dim + 1, y.rank());
  p.count = r.input_count();
  p.element_size = moved_size(r);
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (size_t i = 0; i < p.count; ++i) {
    const Operand& x = r.in(i);
    r.require(x.rank() == y.rank() && extent(x, 0, dim) == p.outer &&
                  extent(x, dim + 1, x.rank()) == p.inner,
              "the parts must have y's other dims");
    sizes.push_back(x.dim(dim));
    total += sizes.back();
  }
  r.require(total == y.dim(dim), "the parts must add up to y");
  std::vector<const void*> parts(p.count);
  emit(r, out, "concat", [p, sizes, parts](const Launch& l) mutable {
    for (size_t i = 0; i < p.count; ++i) parts[i] = l.in<char>(i);
    p.sizes = sizes.data();
    cpu::concat(p, parts.data(), l.out<char>(0));
  });
}

void broadcast(const Request& r, capstan_kernel* out) {
  const Operand& x = r.in(0);
  const int dim = r.dim("dim", x, /*may_be_rank=*/true);
  const int64_t outer = extent(x, 0, dim), inner = extent(x, dim, x.rank());
  const int64_t count = r.need_int("size");
  const size_t bytes = moved_size(r);
  r.expect_out(0, outer * count * inner);
  emit(r, out, "broadcast", [=](const Launch& l) {
    cpu::broadcast_dim(outer, count, inner, bytes, l.in<char>(0), l.out<char>(0));
  });
}

constexpr Adapter kAdapters[] = {
    {"copy", copy},           {"reshape", copy}, {"reinterpret", copy}, {"copy_to_group", copy},
    {"transpose", transpose}, {"slice", slice},  {"pad", pad},          {"concat", concat},
    {"broadcast", broadcast},
};

}  // namespace

std::span<const Adapter> layout_adapters() { return kAdapters; }

}  // namespace capstan::cpu_device
