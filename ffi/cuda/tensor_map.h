// Host side of the bulk tensor copies: descriptors, encoded by the driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "status.h"

namespace ozaki {

// The driver is looked up at run time: the library links to no libcuda and loads without one.
inline Status tensor_map_encoder(decltype(&cuTensorMapEncodeTiled)* encoder) {
  struct Lookup {
    void* function = nullptr;
    cudaError_t error;
    cudaDriverEntryPointQueryResult result;
    Lookup() {
      error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                               cudaEnableDefault, &result);
    }
  };
  static const Lookup lookup;
  if (lookup.error != cudaSuccess) {
    return Status::from(lookup.error, "cudaGetDriverEntryPointByVersion");
  }
  if (lookup.result != cudaDriverEntryPointSuccess || lookup.function == nullptr) {
    return Status("the CUDA driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0");
  }
  *encoder = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(lookup.function);
  return Status();
}

// Describes a byte tensor, dimension 0 contiguous, whose boxes of 128 bytes by box[1] by ... are
// written to shared memory in the 128-byte swizzle. strides[i] is that of dimension i + 1, in
// bytes.
template <int kRank>
Status encode_tensor_map(CUtensorMap* map, const uint8_t* data, const cuuint64_t (&sizes)[kRank],
                         const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank]) {
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;
  OZAKI_RETURN_IF_ERROR(tensor_map_encoder(&encode));
  cuuint32_t element_strides[kRank];
  for (cuuint32_t& stride : element_strides) stride = 1;
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, kRank, const_cast<uint8_t*>(data), sizes, strides,
             box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status();
  std::string cause = "cuTensorMapEncodeTiled: CUresult " + std::to_string(result) + ", sizes";
  for (cuuint64_t size : sizes) cause += " " + std::to_string(size);
  cause += ", strides";
  for (cuuint64_t stride : strides) cause += " " + std::to_string(stride);
  return Status(cause);
}

}  // namespace ozaki
