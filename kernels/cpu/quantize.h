// Blockwise int8 quantisation by absolute maximum (Dettmers et al. 2022, linear codes).
#ifndef CAPSTAN_KERNELS_CPU_QUANTIZE_H_
#define CAPSTAN_KERNELS_CPU_QUANTIZE_H_

#include <cstdint>

namespace capstan::cpu {

// Blocks of `block` consecutive elements, the last possibly shorter: scale = max|x| / 127 and
// codes = round(x / scale), ties to even, in [-127, 127]. x [n], codes int8 [n], scales
// [ceil(n / block)]. A block whose maximum is below 2e-36 gives scale 0 and codes 0; one that holds
// an infinity or NaN gives a scale that is not finite. Threads: the OpenMP pool.
void quantize_int8(std::int64_t n, std::int64_t block, const float* x, std::int8_t* codes,
                   float* scales);

// y = codes * scale of the block.
void dequantize_int8(std::int64_t n, std::int64_t block, const std::int8_t* codes,
                     const float* scales, float* y);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_QUANTIZE_H_
