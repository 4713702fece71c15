// What the launch heuristics ask about the current device.
#pragma once

#include <map>
#include <mutex>

#include "status.h"

namespace ozaki {

struct Device {
  int ordinal;
  int capability;  // 90 for compute capability 9.0
  int multiprocessors;
  int shared_bytes_block;  // shared memory that one block can opt in to
  int shared_bytes_multiprocessor;
  bool bulk_copies;  // whether this build's code for it has them, clusters and dependent launches:
                     // sm_90 and later
};

// Looked up once a device and kept. Fails where this build has no code for the device; the cause
// names its compute capability.
Status current_device(const Device*& device);

// Lets launches of a kernel take all the shared memory that a block can opt in to: another limit
// for each launch could be changed by another thread before it. Asked once a kernel and device.
Status allow_shared_memory(const void* kernel, const Device& device);

template <typename... Parameters>
Status allow_shared_memory(void (*kernel)(Parameters...), const Device& device) {
  return allow_shared_memory(reinterpret_cast<const void*>(kernel), device);
}

// A number of each device, asked for where it is first needed and kept.
class PerDevice {
 public:
  // ask(&number) -> Status
  template <typename Ask>
  Status get(const Device& device, int* number, const Ask& ask) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto kept = kept_.find(device.ordinal);
    if (kept == kept_.end()) {
      OZAKI_RETURN_IF_ERROR(ask(number));
      kept = kept_.emplace(device.ordinal, *number).first;
    }
    *number = kept->second;
    return Status();
  }

 private:
  std::mutex mutex_;
  std::map<int, int> kept_;
};

// The status of the launch just made of `kernel`, on the current device.
Status launch_status(const char* kernel);

// How many CTAs of a kernel run at once on the current device.
template <typename Kernel>
Status resident_ctas(Kernel kernel, int threads, int shared_bytes, int64_t* ctas) {
  int ordinal = 0, multiprocessors = 0, of_each = 0;
  OZAKI_RETURN_IF_CUDA_ERROR(cudaGetDevice(&ordinal));
  OZAKI_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, ordinal));
  OZAKI_RETURN_IF_CUDA_ERROR(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, kernel, threads, shared_bytes));
  *ctas = int64_t{multiprocessors} * of_each;
  return of_each > 0 ? Status() : Status("no CTA fits on this device");
}

}  // namespace ozaki
