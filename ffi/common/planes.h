// Magnitude planes: small integers that bound |a| from below, for lower bounds of S = |A||B|.
#pragma once

#include "common/layout.h"
#include "common/statistics.h"

namespace ozaki {

// The part of k that a magnitude product sums over: of the blocks of kPlaneBlock consecutive k,
// every step-th. What is kept lies without gaps.
constexpr int64_t kPlaneBlock = 64;

struct PlaneSubset {
  int64_t k, step;

  OZAKI_HD bool all() const { return step == 1; }
  OZAKI_HD int64_t kept() const {
    const int64_t blocks = (round_up(k, kPlaneBlock) / kPlaneBlock + step - 1) / step;
    const int64_t last = k - (blocks - 1) * step * kPlaneBlock;
    return (blocks - 1) * kPlaneBlock + (last < kPlaneBlock ? last : kPlaneBlock);
  }
  // The element of k at position h of a plane.
  OZAKI_HD int64_t element(int64_t h) const {
    return h / kPlaneBlock * step * kPlaneBlock + h % kPlaneBlock;
  }
};

// The longest planes that the package asks for: sums of bytes of 8 and of 7 bits fit 32.
constexpr int64_t kMaxCoarseLength = int64_t{1} << 15, kMaxFineLength = int64_t{1} << 17;
static_assert(255 * 255 * kMaxCoarseLength < (int64_t{1} << 31));
static_assert(127 * 127 * kMaxFineLength < (int64_t{1} << 31));

constexpr int kCoarsePlanes = 1, kFinePlanes = 4;
constexpr int kCoarseBits = 8, kFineBits = 14;  // of one byte, and of two bytes of 7

// In place of an exponent: above all magnitudes, so that planes are zero.
constexpr int kNoPlane = 1 << 20;

// floor(|a| 2^(plane_bits - emax)) for finite a with e(a) <= emax + 12, plane_bits <= 14: below
// 2^plane_bits where e(a) <= emax.
OZAKI_HD uint32_t plane_magnitude(uint64_t bits, int emax, int plane_bits) {
  if (emax >= -1021) {
    // The largest element is normal: the significand's upper 21 bits are enough, and all is 32-bit.
    const int high = static_cast<int>(bits >> 32) & 0x7fffffff;
    const int field = (high >> 20) - 1 > 0 ? (high >> 20) - 1 : 0;  // subnormals have that of 1
    const int shift = emax + 1042 - plane_bits - field;
    return static_cast<uint32_t>(high - (field << 20)) >> (shift < 31 ? shift : 31);
  }
  const int shift = emax - plane_bits - exponent(bits);
  const uint64_t magnitude = significand(bits) << (shift < 0 ? -shift : 0);
  return shift > 63 ? 0 : static_cast<uint32_t>(magnitude >> (shift < 0 ? 0 : shift));
}

// What the magnitudes of a row's planes are relative to: the largest element, but of coarse ones at
// most 16 to 32 times the mean of the nonzeros. What lies above is cut off, so that a few large
// elements do not take the bits of all others.
OZAKI_HD int plane_exponent(const RowStatistics& row, int plane_bits) {
  if (plane_bits != kCoarseBits || row.nnz == 0) return row.emax;
  const int mean = bit_length(row.sumabs / row.nnz) - 16;  // of 2^emax
  return row.emax + (mean + 4 < 0 ? mean + 4 : 0);
}

// The coarse plane's byte of an element.
OZAKI_HD uint32_t coarse_magnitude(uint64_t bits, int exponent) {
  const uint32_t magnitude = plane_magnitude(bits, exponent, kCoarseBits);
  return magnitude < 255 ? magnitude : 255;
}

// The planes of the second rung, as both sides of four products: hi hi, hi lo, lo hi, mask mask.
// Rows with non-finite elements have planes of zeros.
enum class Side : int64_t { kLhs = 0, kRhs = 1 };

// Byte `plane` of a fine element, from its 14 bits and whether it is nonzero.
OZAKI_HD uint8_t fine_plane(uint32_t magnitude, bool nonzero, int plane, Side side) {
  if (plane == 3) return nonzero;
  const bool low = plane == (side == Side::kLhs ? 2 : 1);
  return static_cast<uint8_t>(low ? magnitude & 127 : magnitude >> 7);
}

}  // namespace ozaki
