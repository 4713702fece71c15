// What the launchers ask about the current device, and about their kernels on it.
#pragma once

#include <map>
#include <mutex>
#include <utility>

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

// A number of each kernel on each device, asked for where it is first needed and kept.
class PerKernel {
 public:
  // ask(&number) -> Status, of the current device
  template <typename Ask>
  Status get(const void* kernel, const Device& device, int* number, const Ask& ask) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::pair key(device.ordinal, kernel);
    auto kept = kept_.find(key);
    if (kept == kept_.end()) {
      OZAKI_RETURN_IF_ERROR(ask(number));
      kept = kept_.emplace(key, *number).first;
    }
    *number = kept->second;
    return Status();
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, const void*>, int> kept_;
};

}  // namespace ozaki
