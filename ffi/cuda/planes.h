// The magnitude planes of the rows of an operand: common/planes.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/layout.h"
#include "device.h"
#include "flagged_tiles.h"

namespace ozaki {

struct Planes {
  const double* x;
  Layout layout;
  const int64_t* stats;  // [batch, rows, kStatsFields]
  PlaneSubset subset;    // of layout.k
  Side side;
  FlaggedTiles flagged;  // for the fine planes: rows of other tiles are left alone
  uint8_t* planes;       // [batch, 1 or 4, rows, padded_k(subset.kept())]
};

// Enqueues the coarse plane (count 1) or the fine ones (count 4) on `stream` of `device`, the current
// one. Allocates nothing, waits for nothing.
Status launch_planes(const Planes& planes, int count, const Device& device, cudaStream_t stream);

}  // namespace ozaki
