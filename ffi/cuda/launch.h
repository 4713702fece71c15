// Launches with the attributes that sm_90 brought.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device.h"

namespace ozaki {

struct LaunchShape {
  int64_t ctas;
  int threads;
  int shared_bytes = 0;
  int cluster = 1;
  // Begins before the kernel before it in the stream has ended, and waits for it
  // (ptx/dependent_launch.cuh).
  bool early = false;
};

template <typename Kernel, typename... Arguments>
Status launch(const char* name, Kernel kernel, const LaunchShape& shape, cudaStream_t stream,
              const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(shape.ctas);
  config.blockDim = static_cast<unsigned>(shape.threads);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  cudaLaunchKernelEx(&config, kernel, arguments...);
  return launch_status(name);
}

}  // namespace ozaki
