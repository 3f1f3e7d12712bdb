// Between the C structs of plugin_api and the host's own types. Views own the arrays that a C
// struct points into; they must outlive its use.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin_api/base.h"
#include "plugin_api/program.h"
#include "runtime/program/program.h"
#include "runtime/program/types.h"

namespace capstan {

// Copies a struct into one whose maker may know fewer or more fields.
template <typename T>
void CopySized(const T& from, T* to) {
  const size_t size =
      std::min(from.struct_size, to->struct_size == 0 ? sizeof(T) : to->struct_size);
  std::memcpy(static_cast<void*>(to), &from, size);
  to->struct_size = size;
}

inline constexpr int32_t kMostDims = 8;  // of a tensor that crosses the ABI

struct AttrsView {
  AttrsView() = default;
  explicit AttrsView(const Attrs& attrs) { Fill(attrs); }
  void Fill(const Attrs& attrs);
  std::vector<capstan_attr> list;

 private:
  Attrs copy_;
};

struct PlacementView {
  void Fill(const Placement& placement);
  std::vector<capstan_placement> list;

 private:
  Placement copy_;
};

struct TensorView {
  TensorView() = default;
  TensorView(const TensorView&) = delete;
  TensorView& operator=(const TensorView&) = delete;
  void Fill(const Tensor& tensor);
  capstan_tensor_desc desc{};

 private:
  Tensor copy_;
  PlacementView placement_;
  std::vector<const char*> axes_, extents_;
  capstan_external external_{};
};

struct OpView {
  OpView() = default;
  OpView(const OpView&) = delete;
  OpView& operator=(const OpView&) = delete;
  void Fill(const Op& op);
  capstan_op_desc desc{};

 private:
  std::string kind_;
  std::vector<capstan_tensor> inputs_, outputs_;
  AttrsView attrs_;
  capstan_when when_{};
};

Placement PlacementFromC(const capstan_placement* list, size_t count);
absl::StatusOr<Tensor> TensorFromC(const capstan_tensor_desc& desc);
absl::StatusOr<AttrValue> AttrFromC(const capstan_attr& attr);
absl::StatusOr<NewOp> OpFromC(const capstan_op_desc& desc);
When WhenFromC(const capstan_when* when);  // nullptr: always

}  // namespace capstan
