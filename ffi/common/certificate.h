// Whether an output's error bound keeps |C - AB| <= c u |A||B|, from integers of its row and its
// column alone.
//
// X = sum A'B' differs from AB 2^(mu + nu) by at most
//   E = min(r (B / 2 + 1/8), h) + min(c (A / 2 + 1/8), f),   f = 1/2 sum_h |a_h| 2^mu + nnz / 8,
// where at most r elements of the row and c of the column are rounded and meet a nonzero, A =
// 2^(emax + mu) is above every |a_h| 2^mu, and B and h belong to the column as A and f to the row,
// and the output is certified if E <= (c - 1) u S_lo 2^(mu + nu) for a lower bound S_lo of |A||B|.
// All is float32 whose products are exact but for one, in an order that contraction cannot change:
// the same decision on every device. The factor 1 - 2^-16 in tau covers every rounding here.
#pragma once

#include "common/occupancy.h"
#include "common/planes.h"
#include "common/scale.h"

namespace ozaki {

// What a row or column brings to the certificates of its outputs.
// A row with a NaN or an Inf brings no error: it is classified, there is nothing to certify.
struct alignas(16) RowBound {
  float half_norm;     // f
  float half_largest;  // A / 2 + 1/8
  float unit;          // 2^(plane exponent + mu - plane bits - 26)
  float rounded;       // r
};

// 2^e as a float32, -126 <= e <= 127.
OZAKI_HD float power_of_two(int e) {
  const uint32_t bits = static_cast<uint32_t>(clamp(e, -126, 127) + 127) << 23;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// x rounded up to 24 bits: exact as a float32.
OZAKI_HD uint64_t round_up_to_float(uint64_t x) {
  const int shift = x < (uint64_t{1} << 24) ? 0 : bit_length(x) - 24;
  return ((x + ((uint64_t{1} << shift) - 1)) >> shift) << shift;
}

// stats: the fields of the row. `scale` may be that of more moduli than the fields' last one knows.
OZAKI_HD RowBound row_bound(const int64_t* stats, int32_t scale, int plane_bits) {
  if (is_sentinel(scale)) return {0, 0, 1, 0};
  const RowStatistics row = load_fields(stats);
  const int exponent = row.emax + scale;
  const float sum = static_cast<float>(round_up_to_float(row.sumabs));
  const float half = sum * power_of_two(exponent - 17);
  return {half + static_cast<float>(row.nnz) * 0.125f, power_of_two(exponent - 1) + 0.125f,
          power_of_two(plane_exponent(row, plane_bits) + scale - plane_bits - 26),
          scale < -row.lsb ? static_cast<float>(rounded_of(stats)) : 0.0f};
}

// Of numbers: one instruction on a device.
OZAKI_HD float smaller(float x, float y) {
#if defined(__CUDA_ARCH__)
  return fminf(x, y);
#else
  return x < y ? x : y;
#endif
}

// For an output whose row and column share so many elements of k.
OZAKI_HD RowBound within(float overlap, RowBound row) {
  row.rounded = smaller(row.rounded, overlap);
  return row;
}

struct Certificate {
  bool holds;
  float error = 0, scale = 1;  // E and u S_lo 2^(mu + nu) where it holds

  // The bound of |X 2^-(mu + nu) - AB| / (u S).
  OZAKI_HD float ratio() const { return error / scale; }
};

OZAKI_HD float error_bound(const RowBound& row, const RowBound& column) {
  return smaller(row.rounded * column.half_largest, column.half_norm) +
         smaller(column.rounded * row.half_largest, row.half_norm);
}

// 2 u S_lo 2^(mu + nu), perhaps Inf. magnitude: S_lo in the units of both rows.
OZAKI_HD float doubled_scale(const RowBound& row, const RowBound& column, float magnitude) {
  return magnitude * row.unit * column.unit;
}

// tau_half: (c - 1) / 2 rounded down, times 1 - 2^-16.
OZAKI_HD Certificate certificate(const RowBound& row, const RowBound& column, float magnitude,
                                 float tau_half) {
  const float error = error_bound(row, column);
  if (error == 0) return {true};
  const float bound = doubled_scale(row, column, magnitude);
  if (!(error <= bound * tau_half)) return {false};
  return {true, error, 0.5f * bound};
}

// Whether an output is certified, with a smaller ratio than another one's, by fewer instructions
// than it takes to find the ratio: if holds() is true. It is of most outputs, since their ratios
// differ little less than this allows for.
struct Below {
  float limit;

  // ratio: of a certified output. An error is 0 or at least 1/8, so that no subnormal number comes
  // near the limit.
  OZAKI_HD Below(float ratio, float tau_half)
      : limit(smaller(0.4995f * ratio, smaller(tau_half, 0x1p64f))) {}

  OZAKI_HD bool holds(const RowBound& row, const RowBound& column, float magnitude) const {
    return error_bound(row, column) <= doubled_scale(row, column, magnitude) * limit;
  }
};

// The rung of the ladder that gives an output, and the tiles of outputs that share work.
enum Rung : uint8_t { kUndecided = 0, kCoarse = 1, kFine = 2, kWide = 3, kSum = 4 };
constexpr int64_t kTile = 128;
OZAKI_HD int64_t tiles_of(int64_t extent) { return (extent + kTile - 1) / kTile; }

struct Decision {
  Rung rung;
  Certificate by;
};

// By the product of the coarse planes.
OZAKI_HD Decision decide(const RowBound& row, const RowBound& column, int32_t sum, float tau_half) {
  const Certificate first = certificate(row, column, static_cast<float>(sum), tau_half);
  return {first.holds ? kCoarse : kUndecided, first};
}

// The products of the fine planes: hi hi, hi lo, lo hi and that of the masks.
struct FineSums {
  int32_t high, high_low, low_high, mask;
};

// By the products of the fine planes, for an output that the coarse ones left undecided: with the
// scales of the first rung, then with those of more moduli. A sum of masks of 0 means that S = 0
// where the planes hold every k (all_k): X is 0 too.
OZAKI_HD Decision decide(const RowBound& row, const RowBound& column, const RowBound& wide_row,
                         const RowBound& wide_column, const FineSums& sums, bool all_k,
                         float tau_half) {
  if (all_k && sums.mask == 0) return {kFine, {true}};
  const int64_t cross = int64_t{sums.high_low} + sums.low_high;
  const float magnitude = static_cast<float>((int64_t{sums.high} << 14) + (cross << 7));
  const Certificate narrow = certificate(row, column, magnitude, tau_half);
  if (narrow.holds) return {kFine, narrow};
  const Certificate wide = certificate(wide_row, wide_column, magnitude, tau_half);
  return {wide.holds ? kWide : kSum, wide};
}

}  // namespace ozaki
