// How many moduli hold every X of a certified product: few-bit operands need few.
//
// |X_ij| is at most the product of the norms of the row's and the column's integers. Their
// logarithms here are integers in units of 1/256, rounded up and one more; but that of the norm that
// fewer moduli hold rounded down, that two of them need no more moduli. A sum with another row's is
// an upper bound all the same.
#pragma once

#include "common/scale.h"
#include "common/tables.h"

namespace ozaki {

// Numbers of moduli: of the first rung, of its rows that take fewer (the same where none do), and of
// the third rung.
struct RungModuli {
  int first, fewer, wide;
};

// Logarithms of a row's norm with the scale of the first rung and with that of the third; the
// largest ones of several rows.
struct LogNorms {
  int32_t first, wide;
};
constexpr int32_t kNoNorm = -(1 << 24);  // of no row with integers other than 0

// What rows need to know of the moduli.
struct RungLimits {
  Bound fewer, wide;
  LogNorms most;       // what the moduli hold
  int32_t most_fewer;  // the same of fewer
  Table<LogBound, kMaxModuli + 1> log_bounds;

  static RungLimits of(RungModuli moduli) {
    const int32_t first = kLogBounds[moduli.first].norm, fewer = kLogBounds[moduli.fewer].norm;
    return {kBounds[moduli.fewer],
            kBounds[moduli.wide],
            {first, kLogBounds[moduli.wide].norm},
            moduli.fewer < moduli.first ? fewer - 2 : first,
            kLogBounds};
  }
};

// In units of the row's last place, its scale where nothing is rounded. log2(1 + f) <= f + 23 / 256
// for 0 <= f <= 1.
OZAKI_HD int32_t log_exact_norm(const RowStatistics& row) {
  const int zeros = clz64(row.sumsq);
  const int32_t leading = static_cast<int32_t>(((row.sumsq << zeros) - 1) >> 55);
  const int32_t squared = 256 * (62 - zeros) + leading + 1 + 23;
  return ((squared + 1) >> 1) + 1 + 256 * (row.emax - 16 - row.lsb);
}

// most: of the norms that the scale keeps.
OZAKI_HD int32_t log_norm(const RowStatistics& row, int32_t scale, int32_t most) {
  if (is_sentinel(scale) || row.nnz == 0) return kNoNorm;
  if (scale < -row.lsb) return most;
  const int32_t exact = log_exact_norm(row);
  return exact < most ? exact : most;
}

struct WideRow {
  int32_t scale;  // of the third rung
  LogNorms norms;
};

// scale: of the first rung.
OZAKI_HD WideRow wide_row(const RowStatistics& row, int32_t scale, const RungLimits& limits) {
  const int32_t wide = scale_exponent(row, limits.wide);
  const bool few = scale == scale_exponent(row, limits.fewer);
  return {wide,
          {log_norm(row, scale, few ? limits.most_fewer : limits.most.first),
           log_norm(row, wide, limits.most.wide)}};
}

// The fewest of `moduli` moduli that hold the product of norms.
OZAKI_HD int32_t modulus_count(int32_t log_product, int moduli, const RungLimits& limits) {
  int32_t needed = kMinModuli;
  OZAKI_LOOP
  for (int n = kMinModuli; n < moduli; ++n) {
    needed += log_product > limits.log_bounds[n].product ? 1 : 0;
  }
  return needed;
}

}  // namespace ozaki
