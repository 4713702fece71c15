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

// Residues are padded along k, and v along n, to whole 16-byte vectors.
constexpr int64_t kVectorBytes = 16;
OZAKI_HD int64_t padded(int64_t extent) {
  return (extent + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
}

}  // namespace ozaki
