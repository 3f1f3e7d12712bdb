// Gradient norms and parameter updates.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/reference/optimizer.h"
#include "plugins/device/cpu/kernel.h"

namespace capstan::cpu_device {
namespace {

// ---- over any number of tensors --------------------------------------------------------------

std::vector<int64_t> sizes_of(const Request& r) {
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < r.input_count(); ++i) {
    if (!r.in(i).is(r.in(0).dtype)) r.refuse_dtypes();
    sizes.push_back(r.in(i).size());
  }
  return sizes;
}

std::vector<cpu::ConstBuffer> buffers_of(const std::vector<int64_t>& sizes) {
  std::vector<cpu::ConstBuffer> buffers;
  for (const int64_t n : sizes) buffers.push_back({nullptr, n});
  return buffers;
}

void point_at_inputs(const Launch& l, std::vector<cpu::ConstBuffer>& buffers) {
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].data = l.in(i);
}

void sum_squares(const Request& r, capstan_kernel* out) {
  const ScalarOutput norm2 = r.scalar_out(0);
  const std::vector<int64_t> sizes = sizes_of(r);
  if (sizes.empty()) {
    return emit(r, out, "sum_squares", [=](const Launch& l) { l.write(norm2, 0.0); });
  }
  by_dtype(
      r, r.in(0),
      [&] {
        auto buffers = buffers_of(sizes);
        Workspace w;
        const auto scratch =
            w.take_bytes(cpu::sum_squares_workspace(buffers.data(), buffers.size()));
        emit(
            r, out, "sum_squares",
            [norm2, scratch, buffers](const Launch& l) mutable {
              point_at_inputs(l, buffers);
              l.write(norm2, cpu::sum_squares(buffers.data(), buffers.size(), l.at(scratch)));
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        emit(r, out, "plain sum_squares", [norm2, sizes](const Launch& l) {
          double sum = 0.0;
          for (size_t i = 0; i < sizes.size(); ++i) {
            const T* x = l.in<T>(i);
            for (int64_t j = 0; j < sizes[i]; ++j) sum += double(x[j]) * double(x[j]);
          }
          l.write(norm2, sum);
        });
      });
}

void all_finite(const Request& r, capstan_kernel* out) {
  r.require(r.out(0).is(sdk::kBool) && r.out(0).size() == 1, "the result is one bool");
  const std::vector<int64_t> sizes = sizes_of(r);
  if (sizes.empty()) {
    return emit(r, out, "all_finite", [](const Launch& l) { *l.out<uint8_t>(0) = 1; });
  }
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "all_finite", [buffers = buffers_of(sizes)](const Launch& l) mutable {
          point_at_inputs(l, buffers);
          *l.out<uint8_t>(0) = cpu::all_finite(buffers.data(), buffers.size()) ? 1 : 0;
        });
      },
      [&]<class T>(T) {
        emit(r, out, "plain all_finite", [sizes](const Launch& l) {
          bool finite = true;
          for (size_t i = 0; i < sizes.size(); ++i) {
            const T* x = l.in<T>(i);
            for (int64_t j = 0; j < sizes[i]; ++j) finite = finite && std::isfinite(x[j]);
          }
          *l.out<uint8_t>(0) = finite ? 1 : 0;
        });
      });
}

void clip_scale(const Request& r, capstan_kernel* out) {
  const ScalarInput norm2 = r.scalar(0);
  const ScalarOutput norm = r.scalar_out(0), scale = r.scalar_out(1);
  const double clip = r.need_float("clip");
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "clip_scale", [=](const Launch& l) {
          const cpu::ClipScale c = cpu::clip_scale(l.read(norm2), clip);
          l.write(norm, c.norm);
          l.write(scale, c.scale);
        });
      },
      [&]<class T>(T) {
        emit(r, out, "plain clip_scale", [=](const Launch& l) {
          const T root = std::sqrt(T(l.read(norm2)));
          l.write(norm, root);
          l.write(scale, clip <= 0.0 ? T(1) : std::min(T(1), T(clip) / (root + T(1e-6))));
        });
      });
}

// ---- updates ---------------------------------------------------------------------------------

// Outputs of an update are read and written, all of grad's shape and dtype.
int64_t updated_size(const Request& r, size_t count) {
  const Operand& grad = r.in(0);
  for (size_t i = 0; i < count; ++i) {
    r.require(r.out(i).size() == grad.size(), "a state's shape differs from the gradient's");
    if (!r.out(i).is(grad.dtype)) r.refuse_dtypes();
  }
  return grad.size();
}

void adamw(const Request& r, capstan_kernel* out) {
  const int64_t n = updated_size(r, 3);
  const ScalarInput lr = r.scalar(1), grad_scale = r.scalar(3);
  r.in(2, sdk::kI64, 1);
  const cpu::AdamwParams p{r.need_float("beta1"), r.need_float("beta2"), r.need_float("eps"),
                           r.need_float("weight_decay")};
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "adamw", [=](const Launch& l) {
          const float rate = static_cast<float>(l.read(lr));
          const float scale = static_cast<float>(l.read(grad_scale));
          cpu::adamw(p, n, &rate, l.in<int64_t>(2), &scale, l.in(0), l.out(0), l.out(1), l.out(2));
        });
      },
      [&]<class T>(T) {
        emit(r, out, "plain adamw", [=](const Launch& l) {
          reference::adamw(p, n, T(l.read(lr)), *l.in<int64_t>(2), T(l.read(grad_scale)),
                           l.in<T>(0), l.out<T>(0), l.out<T>(1), l.out<T>(2));
        });
      });
}

void sgd_with(const Request& r, capstan_kernel* out, const cpu::SgdParams& p, bool momentum) {
  const int64_t n = updated_size(r, momentum ? 2 : 1);
  const ScalarInput lr = r.scalar(1), grad_scale = r.scalar(2);
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "sgd", [=](const Launch& l) {
          const float rate = static_cast<float>(l.read(lr));
          const float scale = static_cast<float>(l.read(grad_scale));
          cpu::sgd(p, n, &rate, &scale, l.in(0), l.out(0), momentum ? l.out(1) : nullptr);
        });
      },
      [&]<class T>(T) {
        emit(r, out, "plain sgd", [=](const Launch& l) {
          reference::sgd(p, n, T(l.read(lr)), T(l.read(grad_scale)), l.in<T>(0), l.out<T>(0),
                         momentum ? l.out<T>(1) : nullptr);
        });
      });
}

void sgd(const Request& r, capstan_kernel* out) {
  sgd_with(r, out,
           {r.need_float("momentum"), r.get_flag("nesterov", false), r.need_float("weight_decay")},
           true);
}
void sgd_plain(const Request& r, capstan_kernel* out) {
  sgd_with(r, out, {0.0, false, r.need_float("weight_decay")}, false);
}

constexpr Adapter kAdapters[] = {
    {"sum_squares", sum_squares},
    {"all_finite", all_finite},
    {"clip_scale", clip_scale},
    {"adamw", adamw},
    {"sgd", sgd},
    {"sgd_plain", sgd_plain},
};

}  // namespace

std::span<const Adapter> update_adapters() { return kAdapters; }

}  // namespace capstan::cpu_device
