// The scale exponent of a row from its statistics: numerics.md, section 4.
#pragma once

#include "common/constants.h"
#include "common/statistics.h"

namespace ozaki {

// Scales of rows that never enter the integer path.
constexpr int32_t kScaleNaN = INT32_MIN;
constexpr int32_t kScaleInf = INT32_MIN + 1;

OZAKI_HD bool is_sentinel(int32_t scale) { return scale <= kScaleInf; }

// The smallest integer r with r^2 >= x, x < 2^62.
OZAKI_HD uint64_t ceil_sqrt(uint64_t x) {
  uint64_t root = 0;
  for (int bit = (x == 0 ? 0 : bit_length(x) + 1) / 2; bit >= 0; --bit) {
    const uint64_t next = root | uint64_t{1} << bit;
    if (next * next <= x) root = next;
  }
  return root * root < x ? root + 1 : root;
}

// sqrt(nnz) / 2 in units of 2^bound.exponent, rounded up: what rounding can add to a row's norm.
OZAKI_HD uint64_t rounding_norm(uint64_t nnz, Bound bound) {
  const uint64_t root = ceil_sqrt(nnz);
  const int shift = bound.exponent + 1;
  return shift <= 0 ? root << -shift : (root + ((uint64_t{1} << shift) - 1)) >> shift;
}

// Whether rows of k elements can be scaled at all: H > sqrt(k) / 2, rounded as above.
OZAKI_HD bool admits(Bound bound, uint64_t k) { return rounding_norm(k, bound) < bound.mantissa; }

// mu = min(-lsb, floor(log2(H - sqrt(nnz) / 2) - log2 ||a||_2)) with integer upper bounds of both
// norms, or the sentinel of a row with non-finite elements. Needs admits(bound, nnz).
OZAKI_HD int32_t scale_exponent(const RowStatistics& row, Bound bound) {
  if (row.flags != 0) return (row.flags & kHasNaN) != 0 ? kScaleNaN : kScaleInf;
  if (row.nnz == 0) return 0;
  const uint64_t gap = bound.mantissa - rounding_norm(row.nnz, bound);
  const uint64_t gap_squared = gap * gap;
  // d = floor(log2(gap^2 / sumsq)), by comparing both with the leading one at bit 63
  const int clz_gap = clz64(gap_squared), clz_sum = clz64(row.sumsq);
  const bool borrow = (row.sumsq << clz_sum) > (gap_squared << clz_gap);
  const int d = clz_sum - clz_gap - (borrow ? 1 : 0);
  const int32_t from_norm = (d >> 1) - row.emax + 16 + bound.exponent;
  return -row.lsb < from_norm ? -row.lsb : from_norm;
}

// The bounds that a row's scale is made for: `fewer` where that rounds at most most_rounded of the
// row's elements (0: nowhere), else `all`. Rows of float32 values are long only because of a few
// elements that are tiny.
struct ScaleBounds {
  Bound all, fewer = {};
  uint32_t most_rounded = 0;
};

// Whether a finite element is no multiple of 2^-mu.
OZAKI_HD bool is_rounded(uint64_t bits, int32_t mu) {
  return !is_zero(bits) && lowest_bit(bits) < -mu;
}

struct RowScale {
  int32_t mu;
  uint32_t rounded;  // at most so many elements are no multiples of 2^-mu
};

// fewer: the scale for bounds.fewer and the elements that it rounds, of which only matters how many
// they are up to most_rounded + 1.
OZAKI_HD RowScale row_scale(const RowStatistics& row, const ScaleBounds& bounds,
                            const RowScale& fewer) {
  if (fewer.rounded <= bounds.most_rounded && bounds.most_rounded != 0) return fewer;
  const int32_t mu = scale_exponent(row, bounds.all);
  return {mu, is_sentinel(mu) || mu >= -row.lsb ? 0 : row.nnz};
}

}  // namespace ozaki
