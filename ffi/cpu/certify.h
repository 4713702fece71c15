// Which rung of the ladder gives each output: common/certificate.h.
#pragma once

#include "common/modulus_count.h"
#include "cpu/parallel.h"

namespace ozaki {

// Rows or columns of one operand: scales int32[batch, rows], stats int64[batch, rows,
// kStatsFields].
struct CertifiedRows {
  const int32_t* scale;
  const int64_t* stats;
};

struct CertifySizes {
  int64_t batch, m, n, k;
};

// rung uint8[batch, m, padded(n)], 0 in the padding; tiles uint32[batch, tiles_of(m), tiles_of(n)],
// see common/occupancy.h; worst float32, shaped as the tiles: the largest ratio of a certificate of
// the outputs decided in this call.
struct RungMap {
  uint8_t* rung;
  uint32_t* tiles;
  float* worst;
};

// Counts int32[1] and scales int32[batch, rows].
struct RungNeeds {
  int32_t *count, *wide_count;
  int32_t *wide_row_scale, *wide_column_scale;
};

void count_moduli(const CertifySizes& sizes, const RungModuli& moduli, const CertifiedRows& rows,
                  const CertifiedRows& columns, RungNeeds needs);

// By the coarse planes' sums int32[batch, 1, m, padded(n)].
void certify(const int32_t* sums, const CertifySizes& sizes, float tau_half,
             const CertifiedRows& rows, const CertifiedRows& columns, RungMap map,
             const Scheduler& scheduler);

// By the fine planes' sums int32[batch, 4, m, padded(n)], for the outputs of the map that are still
// undecided. all_k: the planes hold every k.
void certify_fine(const int32_t* sums, const CertifySizes& sizes, bool all_k, float tau_half,
                  const CertifiedRows& rows, const CertifiedRows& columns,
                  const int32_t* wide_row_scale, const int32_t* wide_column_scale, RungMap map,
                  const Scheduler& scheduler);

}  // namespace ozaki
