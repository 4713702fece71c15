// Which rung of the ladder gives each output: common/certificate.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/certificate.h"
#include "common/modulus_count.h"
#include "device.h"

namespace ozaki {

// What is known of rows or columns.
struct CertifiedRows {
  const int64_t* stats;  // [batch, rows, kStatsFields]
  const int32_t* scale;  // [batch, rows]
  int32_t* wide_scale;   // the same of more moduli: written by the coarse planes for the fine ones
};

// What a tile's rows or columns have in common.
struct TileRows {
  uint64_t any, missing;  // occupancies: in any of them, and not in all
  LogNorms largest;
};

// How many moduli the rungs have, and where to say how many of them hold every X.
struct ModulusCounts {
  RungModuli moduli;
  int32_t *first, *wide;
};

struct Certify {
  const int32_t* sums;  // [batch, 1 or 4, m, np]: products of the coarse planes or the fine ones
  CertifiedRows rows, columns;
  int64_t batch, m, n, k;
  bool all_k;
  float tau_half;
  // Written by the coarse planes and updated by the fine ones, which leave tiles without undecided
  // outputs alone; past column n of np a rung is 0.
  uint8_t* rung;    // [batch, m, np]
  uint32_t* tiles;  // [batch, tiles_of(m), tiles_of(n)]: common/occupancy.h
  float* worst;     // the same shape: the largest ratio of the outputs decided here
};

// Enqueues on `stream` of `device`, the current one. Allocates nothing, waits for nothing.
// What the coarse planes decide takes scratch, bound_bytes aligned to 16.
Status launch_certify(const Certify& certify, const ModulusCounts& counts, void* scratch,
                      const Device& device, cudaStream_t stream);
Status launch_certify_fine(const Certify& certify, const Device& device, cudaStream_t stream);

inline int64_t bound_bytes(int64_t batch, int64_t m, int64_t n) {
  const int64_t tiles = batch * (tiles_of(m) + tiles_of(n));
  return tiles * (kTile * (sizeof(RowBound) + sizeof(uint64_t)) + sizeof(TileRows));
}

}  // namespace ozaki
