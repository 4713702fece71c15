// What the launch heuristics ask about the current device.
#pragma once

#include "status.h"

namespace ozaki {

struct Device {
  int ordinal;
  int capability;  // 90 for compute capability 9.0
  int multiprocessors;
  int shared_bytes_block;  // shared memory that one block can opt in to
  int shared_bytes_multiprocessor;
};

// Looked up once a device and kept. Fails where this build has no code for the device; the cause
// names its compute capability.
Status current_device(const Device*& device);

// The status of the launch just made of `kernel`, on the current device.
Status launch_status(const char* kernel);

}  // namespace ozaki
