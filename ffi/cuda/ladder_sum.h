// The last rung of the ladder: outputs as sums of their products, common/accumulate.h and chains.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/layout.h"
#include "device.h"
#include "flagged_tiles.h"

namespace ozaki {

struct LadderSum {
  const double *a, *b;
  Layout a_layout, b_layout;         // rows m and n
  const int64_t *a_stats, *b_stats;  // [batch, rows, kStatsFields], whose occupancies say where
                                     // there is nothing to add
  const uint8_t* rung;               // [batch, m, np]
  FlaggedTiles flagged;              // by the rungs whose outputs are written
  bool exact;                        // correctly rounded
  int64_t group;                     // chains in a group, or 0: integers are added up
  double* c;                         // [batch, m, n]: other outputs keep what they hold
};

// Enqueues on `stream` of `device`, the current one. Allocates nothing, waits for nothing.
Status launch_ladder_sum(const LadderSum& sum, const Device& device, cudaStream_t stream);

}  // namespace ozaki
