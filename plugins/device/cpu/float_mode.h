// Flushing subnormal floats to zero, per thread.
#ifndef CAPSTAN_PLUGINS_DEVICE_CPU_FLOAT_MODE_H_
#define CAPSTAN_PLUGINS_DEVICE_CPU_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace capstan::cpu_device {

#if defined(__x86_64__)
// Flush to zero (results, bit 15) and denormals are zero (operands, bit 6) of MXCSR.
constexpr uint64_t kFlushBits = 0x8040;
inline uint64_t float_mode() { return _mm_getcsr(); }
inline void set_float_mode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
// FZ (bit 24) of FPCR: results and operands.
constexpr uint64_t kFlushBits = uint64_t{1} << 24;
inline uint64_t float_mode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_float_mode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
constexpr uint64_t kFlushBits = 0;
inline uint64_t float_mode() { return 0; }
inline void set_float_mode(uint64_t) {}
#endif

}  // namespace capstan::cpu_device

#endif  // CAPSTAN_PLUGINS_DEVICE_CPU_FLOAT_MODE_H_
