#include "launch.h"

namespace ozaki {

LaunchConfig::LaunchConfig(const LaunchShape& shape, const Device& device, cudaStream_t stream)
    : cudaLaunchConfig_t{} {
  gridDim = static_cast<unsigned>(shape.ctas);
  blockDim = static_cast<unsigned>(shape.threads);
  dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  this->stream = stream;
  attrs = attributes;
  if (shape.cluster > 1) {
    attributes[numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[numAttrs++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.early && device.bulk_copies) {
    attributes[numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
}

Status launch_status(cudaError_t error, const char* kernel, const Device& device) {
  if (error == cudaSuccess) return Status();
  const std::string what = std::string(kernel) + " on GPU " + std::to_string(device.ordinal);
  return Status::from(error, what.c_str());
}

Status allow_shared_memory(const void* kernel, const Device& device) {
  static PerKernel kept;
  int bytes = 0;
  return kept.get(kernel, device, &bytes, [&](int* number) {
    cudaFuncAttributes attributes;
    OZAKI_RETURN_IF_CUDA_ERROR(cudaFuncGetAttributes(&attributes, kernel));
    *number = device.shared_bytes_block - static_cast<int>(attributes.sharedSizeBytes);
    OZAKI_RETURN_IF_CUDA_ERROR(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, *number));
    return Status();
  });
}

Status resident_clusters(const void* kernel, const LaunchShape& shape, const Device& device,
                         int* clusters) {
  static PerKernel kept;
  return kept.get(kernel, device, clusters, [&](int* number) {
    const size_t bytes = static_cast<size_t>(shape.shared_bytes);
    if (bytes > 0) OZAKI_RETURN_IF_ERROR(allow_shared_memory(kernel, device));
    if (shape.cluster == 1) {
      OZAKI_RETURN_IF_CUDA_ERROR(
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(number, kernel, shape.threads, bytes));
      *number *= device.multiprocessors;
    } else {
      const LaunchShape one = {shape.cluster, shape.threads, shape.shared_bytes, shape.cluster};
      const LaunchConfig config(one, device, nullptr);
      OZAKI_RETURN_IF_CUDA_ERROR(cudaOccupancyMaxActiveClusters(number, kernel, &config));
    }
    if (*number > 0) return Status();
    return Status("no CTA of " + std::to_string(shape.threads) + " threads and " +
                  std::to_string(bytes) + " bytes of shared memory fits on this device");
  });
}

}  // namespace ozaki
