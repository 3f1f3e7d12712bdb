// Unary functions and their derivatives: the oracle of kernels/cpu/activation.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_ACTIVATION_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_ACTIVATION_H_

#include <cmath>
#include <cstdint>
#include <numbers>

#include "kernels/cpu/activation.h"

namespace capstan::reference {

template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

template <class T>
T unary_value(cpu::Unary function, T x) {
  using cpu::Unary;
  const T root = std::sqrt(T(2) / std::numbers::pi_v<T>);
  switch (function) {
    case Unary::kGeluTanh:
      return T(0.5) * x * (T(1) + std::tanh(root * (x + T(0.044715) * x * x * x)));
    // 1 + erf(z) = erfc(-z), which keeps its digits for negative z.
    case Unary::kGeluErf:
      return T(0.5) * x * std::erfc(-x / std::numbers::sqrt2_v<T>);
    case Unary::kRelu:
      return x < T(0) ? T(0) : x;
    case Unary::kSilu:
      return x * sigmoid(x);
    case Unary::kSigmoid:
      return sigmoid(x);
    case Unary::kTanh:
      return std::tanh(x);
    case Unary::kExp:
      return std::exp(x);
    case Unary::kLog:
      return std::log(x);
    case Unary::kSqrt:
      return std::sqrt(x);
    case Unary::kRsqrt:
      return T(1) / std::sqrt(x);
    case Unary::kReciprocal:
      return T(1) / x;
    case Unary::kNeg:
      return -x;
    case Unary::kSquare:
      return x * x;
    case Unary::kAbs:
      return std::fabs(x);
  }
  return T(0);
}

template <class T>
T unary_derivative(cpu::Unary function, T x) {
  using cpu::Unary;
  const T root = std::sqrt(T(2) / std::numbers::pi_v<T>);
  switch (function) {
    case Unary::kGeluTanh: {
      const T t = std::tanh(root * (x + T(0.044715) * x * x * x));
      const T du = root * (T(1) + T(3) * T(0.044715) * x * x);
      return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * du;
    }
    case Unary::kGeluErf:
      return T(0.5) * std::erfc(-x / std::numbers::sqrt2_v<T>) +
             x * std::exp(-x * x / T(2)) / std::sqrt(T(2) * std::numbers::pi_v<T>);
    case Unary::kRelu:
      return x > T(0) ? T(1) : T(0);
    case Unary::kSilu:
      return sigmoid(x) * (T(1) + x * (T(1) - sigmoid(x)));
    case Unary::kSigmoid:
      return sigmoid(x) * (T(1) - sigmoid(x));
    case Unary::kTanh:
      return T(1) - std::tanh(x) * std::tanh(x);
    case Unary::kExp:
      return std::exp(x);
    case Unary::kLog:
      return T(1) / x;
    case Unary::kSqrt:
      return T(0.5) / std::sqrt(x);
    case Unary::kRsqrt:
      return T(-0.5) / (x * std::sqrt(x));
    case Unary::kReciprocal:
      return T(-1) / (x * x);
    case Unary::kNeg:
      return T(-1);
    case Unary::kSquare:
      return T(2) * x;
    case Unary::kAbs:
      return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0);
  }
  return T(0);
}

template <class T>
T swiglu(T gate, T up) {
  return gate * sigmoid(gate) * up;
}

template <class T>
void swiglu_backward(T dy, T gate, T up, T* dgate, T* dup) {
  *dgate = dy * up * unary_derivative(cpu::Unary::kSilu, gate);
  *dup = dy * gate * sigmoid(gate);
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_ACTIVATION_H_
