// Statistics and scales of the rows of an operand.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/constants.h"
#include "common/layout.h"
#include "common/scale.h"
#include "device.h"

namespace ozaki {

struct StatisticsOutputs {
  int32_t* scale;  // [batch, rows]
  int64_t* stats;  // [batch, rows, kStatsFields]
};

// Bytes of scratch that statistics and quantize may use.
int64_t scratch_bytes(const Layout& layout);

// Enqueues the statistics of `x` and its scales on `stream` of `device`, the current one. Allocates
// nothing, waits for nothing.
Status launch_statistics(const double* x, const Layout& layout, const ScaleBounds& bounds,
                         const StatisticsOutputs& outputs, void* scratch, const Device& device,
                         cudaStream_t stream);

}  // namespace ozaki
