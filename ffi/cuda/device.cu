#include <map>
#include <mutex>

#include "device.h"

namespace ozaki {
namespace {

// Any kernel of this library tells which code the driver picks for a device.
__global__ void code_probe() {}

Status look_up(int ordinal, Device& device) {
  const auto attribute = [ordinal](int& value, cudaDeviceAttr name) {
    return Status::from(cudaDeviceGetAttribute(&value, name, ordinal), "cudaDeviceGetAttribute");
  };
  int major = 0, minor = 0;
  OZAKI_RETURN_IF_ERROR(attribute(major, cudaDevAttrComputeCapabilityMajor));
  OZAKI_RETURN_IF_ERROR(attribute(minor, cudaDevAttrComputeCapabilityMinor));
  device.ordinal = ordinal;
  device.capability = 10 * major + minor;
  OZAKI_RETURN_IF_ERROR(attribute(device.multiprocessors, cudaDevAttrMultiProcessorCount));
  OZAKI_RETURN_IF_ERROR(
      attribute(device.shared_bytes_block, cudaDevAttrMaxSharedMemoryPerBlockOptin));
  OZAKI_RETURN_IF_ERROR(
      attribute(device.shared_bytes_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor));
  cudaFuncAttributes code;
  if (const cudaError_t error = cudaFuncGetAttributes(&code, code_probe); error != cudaSuccess) {
    cudaGetLastError();
    return Status("GPU " + std::to_string(ordinal) + " of compute capability " +
                  std::to_string(major) + "." + std::to_string(minor) +
                  " is not covered by this build: " + cudaGetErrorString(error));
  }
  device.bulk_copies = code.ptxVersion >= 90;
  return Status();
}

}  // namespace

Status current_device(const Device*& device) {
  int ordinal = 0;
  OZAKI_RETURN_IF_CUDA_ERROR(cudaGetDevice(&ordinal));
  static std::mutex mutex;
  static std::map<int, Device> devices;
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = devices.find(ordinal);
  if (found == devices.end()) {
    Device fresh = {};
    OZAKI_RETURN_IF_ERROR(look_up(ordinal, fresh));
    found = devices.emplace(ordinal, fresh).first;
  }
  device = &found->second;
  return Status();
}

}  // namespace ozaki
