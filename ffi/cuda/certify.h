// Which rung of the ladder gives each output: common/certificate.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/certificate.h"
#include "status.h"

namespace ozaki {

struct Certify {
  const int32_t* sums;  // [batch, 1 or 4, m, np]: products of the coarse planes or the fine ones
  // For the fine ones: what the coarse ones decided, [batch, m, np] and a set a tile.
  const uint8_t* earlier_rung;
  const uint8_t* earlier_tiles;
  const int32_t *scale_a, *scale_b;            // [batch, m], [batch, n]
  const int32_t *wide_scale_a, *wide_scale_b;  // likewise, of more moduli: for the fine ones
  const int64_t *stats_a, *stats_b;            // [batch, m or n, kStatsFields]
  int64_t batch, m, n;
  bool all_k;
  float tau_half;
  // np: n padded to 16; an output's place past n holds kUndecided. worst: the largest ratio of a
  // tile's outputs that were decided here.
  uint8_t* rung;   // [batch, m, np]; may be earlier_rung
  uint8_t* tiles;  // [batch, tiles_of(m), tiles_of(n)]; may be earlier_tiles
  float* worst;    // the same shape
};

// Enqueues on `stream` of the current device. Allocates nothing, waits for nothing.
Status launch_certify(const Certify& certify, int planes, cudaStream_t stream);

}  // namespace ozaki
