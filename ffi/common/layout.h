// How a float64 or complex128 operand lies in memory.
#pragma once

#include "common/hd.h"

namespace ozaki {

// Element h of row r ("row": along the contraction) of batch b, strides in elements. One of
// stride_r and stride_k is 1, unless the extent is.
//
// The float64s of a complex operand are rows of 2k parts, real and imaginary ones in turn: k counts
// parts, and the strides are those of whole elements in float64s.
struct Layout {
  int64_t batch, rows, k;
  int64_t stride_b, stride_r, stride_k;
  int parts = 1;  // of an element, neighbours in memory and along k: 1 or 2

  OZAKI_HD int64_t along_k(int64_t h) const {
    const int odd = parts - 1;
    return (h >> odd) * stride_k + (h & odd);
  }
  OZAKI_HD int64_t offset(int64_t b, int64_t r, int64_t h) const {
    return b * stride_b + r * stride_r + along_k(h);
  }
  OZAKI_HD bool k_contiguous() const { return stride_k == parts || k == parts; }
};

// A complex operand, its layout in elements, as rows of parts.
OZAKI_HD Layout layout_of_parts(const Layout& of) {
  return {of.batch, of.rows, 2 * of.k, 2 * of.stride_b, 2 * of.stride_r, 2 * of.stride_k, 2};
}

OZAKI_HD int64_t round_up(int64_t extent, int64_t unit) {
  return (extent + unit - 1) / unit * unit;
}

// The products v are padded along n to whole 16-byte vectors.
constexpr int64_t kVectorBytes = 16;
OZAKI_HD int64_t padded(int64_t n) { return round_up(n, kVectorBytes); }

// Residues are padded along k likewise, and to whole 128-byte cache lines where that is at most a
// quarter more: the rows of a matrix product then share no line.
constexpr int64_t kLineBytes = 128, kMinLines = 4;
OZAKI_HD int64_t padded_k(int64_t k) {
  return round_up(k, k < kMinLines * kLineBytes ? kVectorBytes : kLineBytes);
}

// k of a layout up to the end of its rows of residues.
OZAKI_HD int64_t padded_k(const Layout& layout) {
  return layout.parts * padded_k(layout.k / layout.parts);
}

}  // namespace ozaki
