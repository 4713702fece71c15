// The tiles of outputs that a stage of the ladder works on.
#pragma once

#include <algorithm>

#include "common/certificate.h"

namespace ozaki {

// tiles uint32[batch, tiles_of(m), tiles_of(n)], see common/occupancy.h; a tile counts if one of
// `rungs` is in it. Without tiles every tile counts.
struct Flagged {
  const uint32_t* tiles = nullptr;
  int64_t m = 0, n = 0;
  int64_t rungs = 0;

  bool holds(uint8_t rung) const { return (rungs >> rung & 1) != 0; }

  bool tile(int64_t b, int64_t i, int64_t j) const {
    return (tiles[(b * tiles_of(m) + i) * tiles_of(n) + j] & rungs) != 0;
  }

  // Any tile that meets these rows and columns.
  bool any(int64_t b, int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    if (tiles == nullptr) return true;
    for (int64_t i = row / kTile; i * kTile < std::min(m, row + rows); ++i)
      for (int64_t j = column / kTile; j * kTile < std::min(n, column + columns); ++j)
        if (tile(b, i, j)) return true;
    return false;
  }
};

// Rows of one operand of the tiles' products.
struct FlaggedSide {
  Flagged flagged;
  Side side = Side::kLhs;

  bool any(int64_t b, int64_t row, int64_t rows) const {
    return side == Side::kLhs ? flagged.any(b, row, rows, 0, flagged.n)
                              : flagged.any(b, 0, flagged.m, row, rows);
  }
};

}  // namespace ozaki
