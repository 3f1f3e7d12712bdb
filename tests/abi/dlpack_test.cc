// Rule 9 of the ABI: tensors are laid out as DLPack's, dtype codes included.
#include <cstddef>

#include "gtest/gtest.h"
#include "plugin_api/base.h"

#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#define CAPSTAN_HAVE_DLPACK 1
#endif

namespace {

#ifdef CAPSTAN_HAVE_DLPACK

TEST(DLPack, DataTypesAreLaidOutAlike) {
  EXPECT_EQ(sizeof(capstan_dtype), sizeof(DLDataType));
  EXPECT_EQ(offsetof(capstan_dtype, code), offsetof(DLDataType, code));
  EXPECT_EQ(offsetof(capstan_dtype, bits), offsetof(DLDataType, bits));
  EXPECT_EQ(offsetof(capstan_dtype, lanes), offsetof(DLDataType, lanes));
}

TEST(DLPack, DevicesAreLaidOutAlike) {
  EXPECT_EQ(sizeof(capstan_device_id), sizeof(DLDevice));
  EXPECT_EQ(sizeof(capstan_device_id::type), sizeof(DLDevice::device_type));
  EXPECT_EQ(offsetof(capstan_device_id, type), offsetof(DLDevice, device_type));
  EXPECT_EQ(offsetof(capstan_device_id, id), offsetof(DLDevice, device_id));
}

TEST(DLPack, TensorsAreLaidOutAlike) {
  EXPECT_EQ(sizeof(capstan_dl_tensor), sizeof(DLTensor));
  EXPECT_EQ(offsetof(capstan_dl_tensor, data), offsetof(DLTensor, data));
  EXPECT_EQ(offsetof(capstan_dl_tensor, device), offsetof(DLTensor, device));
  EXPECT_EQ(offsetof(capstan_dl_tensor, ndim), offsetof(DLTensor, ndim));
  EXPECT_EQ(offsetof(capstan_dl_tensor, dtype), offsetof(DLTensor, dtype));
  EXPECT_EQ(offsetof(capstan_dl_tensor, shape), offsetof(DLTensor, shape));
  EXPECT_EQ(offsetof(capstan_dl_tensor, strides), offsetof(DLTensor, strides));
  EXPECT_EQ(offsetof(capstan_dl_tensor, byte_offset), offsetof(DLTensor, byte_offset));
}

TEST(DLPack, CodesAreThoseOfDLPack) {
  EXPECT_EQ(CAPSTAN_DTYPE_INT, static_cast<int>(kDLInt));
  EXPECT_EQ(CAPSTAN_DTYPE_UINT, static_cast<int>(kDLUInt));
  EXPECT_EQ(CAPSTAN_DTYPE_FLOAT, static_cast<int>(kDLFloat));
  EXPECT_EQ(CAPSTAN_DTYPE_BFLOAT, static_cast<int>(kDLBfloat));
  EXPECT_EQ(CAPSTAN_DEVICE_CPU, static_cast<int>(kDLCPU));
  EXPECT_EQ(CAPSTAN_DEVICE_CUDA, static_cast<int>(kDLCUDA));
}

#else

TEST(DLPack, LayoutsAndCodes) { GTEST_SKIP() << "dlpack/dlpack.h is not installed"; }

#endif

}  // namespace
