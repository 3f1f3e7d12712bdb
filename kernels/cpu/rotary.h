// Rotary position embedding (Su et al. 2021, "RoFormer").
#ifndef CAPSTAN_KERNELS_CPU_ROTARY_H_
#define CAPSTAN_KERNELS_CPU_ROTARY_H_

#include <cstddef>
#include <cstdint>

namespace capstan::cpu {

// Frequency scaling of Llama 3.1: wavelengths above original_max_position / low_freq_factor are
// stretched by `factor`, those below original_max_position / high_freq_factor are kept, and those
// between are interpolated. original_max_position 0: no scaling.
struct RotaryScaling {
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position = 0;
};

struct RotaryParams {
  std::int64_t batch = 0;       // B
  std::int64_t seq = 0;         // T
  std::int64_t heads = 0;       // H
  std::int64_t head_dim = 0;    // D
  std::int64_t rotary_dim = 0;  // even, at most D; 0: D. Channels past it are copied.
  double theta = 10000.0;
  // false: pair i is channels (i, i + rotary_dim/2) of a head, as Hugging Face's LLaMA; true:
  // channels (2i, 2i + 1), as the paper.
  bool interleaved = false;
  bool inverse = false;  // rotate back: the backward pass is the inverse applied to dy
  // Elements between tokens of x and y; 0: H * D. Lets x be a column range of a fused product.
  std::int64_t x_stride = 0;
  std::int64_t y_stride = 0;
  std::int64_t position_stride = 0;  // elements between batch rows of `position`; 0: shared by all
  RotaryScaling scaling;
};

// Bytes of workspace, 64-byte aligned by the caller. Depends on omp_get_max_threads(), as the call.
std::size_t rotary_workspace(const RotaryParams& p);

// Angular frequency of each pair, in radians a position: out [rotary_dim / 2].
void rotary_frequencies(const RotaryParams& p, double* out);

// y = x rotated; x, y [B, T, H * D]; position int32 [B, T] or [T]. Angles are computed in double,
// so that positions of any size keep full float accuracy. y may be x (with equal strides). Threads:
// the OpenMP pool; results do not depend on their number.
void rotary(const RotaryParams& p, const float* x, const std::int32_t* position, float* y,
            void* workspace);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_ROTARY_H_
