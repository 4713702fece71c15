// Every launch of a kernel: what it takes of the device, and what it says where it fails.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "device.h"

namespace ozaki {

struct LaunchShape {
  int64_t ctas;
  int threads;
  int shared_bytes = 0;  // beside what the kernel declares
  int cluster = 1;
  // Where the device can: begins before the kernel before it in the stream has ended, and waits for
  // it (ptx/dependent_launch.cuh).
  bool early = false;
};

// Lets launches of a kernel take all the shared memory that a block can opt in to: another limit
// for each launch could be changed by another thread before it.
Status allow_shared_memory(const void* kernel, const Device& device);

// How many clusters of so many threads and bytes, of one CTA or more, run at once on the device:
// the same in all launches of a kernel that asks.
Status resident_clusters(const void* kernel, const LaunchShape& shape, const Device& device,
                         int* clusters);

// The shape as the runtime takes it.
struct LaunchConfig : cudaLaunchConfig_t {
  cudaLaunchAttribute attributes[2] = {};

  LaunchConfig(const LaunchShape& shape, const Device& device, cudaStream_t stream);
  LaunchConfig(const LaunchConfig&) = delete;
};

// What became of a launch.
Status launch_status(cudaError_t error, const char* kernel, const Device& device);

template <typename... Parameters>
const void* address_of(void (*kernel)(Parameters...)) {
  return reinterpret_cast<const void*>(kernel);
}

// Enqueues a kernel on `stream` of `device`, the current one.
template <typename Kernel, typename... Arguments>
Status launch(const char* name, Kernel kernel, const LaunchShape& shape, const Device& device,
              cudaStream_t stream, const Arguments&... arguments) {
  if (shape.ctas > INT32_MAX) return Status(std::string(name) + ": more than 2^31 - 1 CTAs");
  if (shape.shared_bytes > 0) {
    OZAKI_RETURN_IF_ERROR(allow_shared_memory(address_of(kernel), device));
  }
  const LaunchConfig config(shape, device, stream);
  return launch_status(cudaLaunchKernelEx(&config, kernel, arguments...), name, device);
}

// The same for a kernel that walks over shape.ctas pieces of work: with no more CTAs than run at
// once.
template <typename Kernel, typename... Arguments>
Status launch_resident(const char* name, Kernel kernel, LaunchShape shape, const Device& device,
                       cudaStream_t stream, const Arguments&... arguments) {
  int resident = 0;
  OZAKI_RETURN_IF_ERROR(resident_clusters(address_of(kernel), shape, device, &resident));
  shape.ctas = std::min<int64_t>(shape.ctas, resident);
  return launch(name, kernel, shape, device, stream, arguments...);
}

}  // namespace ozaki
