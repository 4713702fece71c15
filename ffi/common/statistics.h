// Integer statistics of a row of the left operand or a column of the right one ("row" below).
// They decide the scale, so they are the same integers on every device: numerics.md, section 3.
#pragma once

#include "common/float64.h"

namespace ozaki {

enum RowFlags : uint32_t { kHasNaN = 1, kHasInf = 2 };

// Statistics of one row or of one chunk of kChunk consecutive elements of it. Non-finite elements
// count as zeros except in `flags`; without nonzero elements every other field is 0.
struct RowStatistics {
  int32_t emax;     // max e(a), e(a) = floor(log2|a|) + 1
  int32_t lsb;      // min lowest_bit(a) over nonzero a
  uint64_t sumsq;   // sum (ceil |a| 2^(16 - emax))^2, chunks joined by rounding up
  uint64_t sumabs;  // sum ceil |a| 2^(16 - emax), likewise
  uint32_t nnz;     // nonzero elements
  uint32_t flags;   // RowFlags
};
static_assert(sizeof(RowStatistics) == 32, "the size of a chunk in scratch buffers");

// Fields of a row in the stats array, int64 [batch, rows, kStatsFields]: emax, lsb, sumsq, nnz,
// flags, sumabs, rounded, occupancy. `rounded`, at most how many elements the row's scale rounds,
// comes with the scale; occupancy is that of occupancy.h.
constexpr int kStatsFields = 8;

OZAKI_HD void store_fields(const RowStatistics& row, uint32_t rounded, uint64_t occupancy,
                           int64_t* stats) {
  stats[0] = row.emax;
  stats[1] = row.lsb;
  stats[2] = static_cast<int64_t>(row.sumsq);
  stats[3] = row.nnz;
  stats[4] = row.flags;
  stats[5] = static_cast<int64_t>(row.sumabs);
  stats[6] = rounded;
  stats[7] = static_cast<int64_t>(occupancy);
}

OZAKI_HD RowStatistics load_fields(const int64_t* stats) {
  return {static_cast<int32_t>(stats[0]),  static_cast<int32_t>(stats[1]),
          static_cast<uint64_t>(stats[2]), static_cast<uint64_t>(stats[5]),
          static_cast<uint32_t>(stats[3]), static_cast<uint32_t>(stats[4])};
}

OZAKI_HD uint32_t rounded_of(const int64_t* stats) { return static_cast<uint32_t>(stats[6]); }

OZAKI_HD uint64_t occupancy_of(const int64_t* stats) { return static_cast<uint64_t>(stats[7]); }

OZAKI_HD uint32_t element_flags(uint64_t bits) {
  return (is_nan(bits) ? kHasNaN : 0u) | (is_inf(bits) ? kHasInf : 0u);
}

// Bits of the element as the statistics see it: |a|, or 0 for a non-finite one.
OZAKI_HD uint64_t finite_magnitude(uint64_t bits) {
  return is_finite(bits) ? magnitude_bits(bits) : 0;
}

// ceil(|a| 2^(16 - emax)) for finite a with e(a) <= emax: 0 for zero, otherwise in [1, 2^16].
OZAKI_HD uint32_t scaled_magnitude(uint64_t bits, int emax) {
  if (emax >= -1021) {
    // The largest element is normal: the significand's upper 21 bits, rounded up, are enough, and
    // all is 32-bit. Subnormals have the exponent of field 1 and no leading one.
    const uint32_t high = static_cast<uint32_t>(bits >> 32) & 0x7fffffff;
    const uint32_t field = high >> 20;
    const uint32_t upper =
        (high & 0xfffff) + (field != 0 ? 0x100000 : 0) + (static_cast<uint32_t>(bits) != 0 ? 1 : 0);
    const int distance = emax + 1027 - static_cast<int>(field == 0 ? 1 : field);
    const int shift = distance < 31 ? distance : 31;
    return (upper + ((1u << shift) - 1)) >> shift;
  }
  const int shift = emax - 16 - exponent(bits);  // -15 .. 36 here
  const int left = shift < 0 ? -shift : 0, right = shift < 0 ? 0 : shift;
  const uint64_t scaled = significand(bits) << left;
  return static_cast<uint32_t>((scaled + ((uint64_t{1} << right) - 1)) >> right);
}

// The term of `sumsq`: at most 2^32.
OZAKI_HD uint64_t scaled_square(uint64_t bits, int emax) {
  const uint64_t scaled = scaled_magnitude(bits, emax);
  return scaled * scaled;
}

// ceil(sum / 2^shift), shift >= 0: a chunk's sum relative to the emax of the row.
OZAKI_HD uint64_t rescaled(uint64_t sum, int shift) {
  return shift >= 64 ? sum != 0 : (sum + ((uint64_t{1} << shift) - 1)) >> shift;
}

// Joins everything but the sums, which need the final emax: see join_sums.
OZAKI_HD void join_all_but_sums(RowStatistics& row, const RowStatistics& chunk) {
  if (chunk.nnz != 0) {
    const bool first = row.nnz == 0;
    row.emax = first || chunk.emax > row.emax ? chunk.emax : row.emax;
    row.lsb = first || chunk.lsb < row.lsb ? chunk.lsb : row.lsb;
  }
  row.nnz += chunk.nnz;
  row.flags |= chunk.flags;
}

// Adds the sums of a chunk to a row whose emax is final.
OZAKI_HD void join_sums(RowStatistics& row, const RowStatistics& chunk) {
  if (chunk.nnz == 0) return;
  const int distance = row.emax - chunk.emax;
  row.sumsq += rescaled(chunk.sumsq, 2 * distance);
  row.sumabs += rescaled(chunk.sumabs, distance);
}

// The statistics of a row from those of its chunks.
OZAKI_HD RowStatistics row_statistics(const RowStatistics* chunks, int64_t count) {
  RowStatistics row = {};
  for (int64_t c = 0; c < count; ++c) join_all_but_sums(row, chunks[c]);
  for (int64_t c = 0; c < count; ++c) join_sums(row, chunks[c]);
  return row;
}

}  // namespace ozaki
