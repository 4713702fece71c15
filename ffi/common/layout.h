// How a float64 operand lies in memory.
#pragma once

#include "common/hd.h"

namespace ozaki {

// Element h of row r ("row": along the contraction) of batch b, strides in elements. One of
// stride_r and stride_k is 1, unless the extent is.
struct Layout {
  int64_t batch, rows, k;
  int64_t stride_b, stride_r, stride_k;

  OZAKI_HD int64_t offset(int64_t b, int64_t r, int64_t h) const {
    return b * stride_b + r * stride_r + h * stride_k;
  }
};

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

}  // namespace ozaki
