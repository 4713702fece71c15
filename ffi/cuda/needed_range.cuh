// What the flagged tiles of rows of an operand need of k.
#pragma once

#include "flagged_tiles.h"

namespace ozaki {

// Tiles of a matrix product are at most so many flagged ones wide and high, a power of two.
constexpr uint32_t kTogether = 2;

// Together, those of `count` rows from `first`, counted through the batch: rows of the lhs, or
// columns as rows of the rhs. Nothing if none is flagged. All lanes of a warp must ask.
__device__ __forceinline__ KRange needed_range(const FlaggedTiles& flagged, Side side,
                                               int64_t first, int64_t count, int64_t rows,
                                               int64_t k) {
  const uint32_t own = side == Side::kLhs ? flagged.tiles_m : flagged.tiles_n;
  const uint32_t others = side == Side::kLhs ? flagged.tiles_n : flagged.tiles_m;
  // A tile of a matrix product is up to kTogether of these in either direction: it multiplies what
  // any of them needs.
  const auto tile_of = [&](uint32_t row, bool last) {
    const uint32_t batch = row / static_cast<uint32_t>(rows);
    const uint32_t tile = (row - batch * static_cast<uint32_t>(rows)) / uint32_t{kTile};
    return batch * own + (last ? min(tile | (kTogether - 1), own - 1) : tile & ~(kTogether - 1));
  };
  const uint32_t begin = tile_of(first, false);
  const uint32_t tiles = tile_of(first + count - 1, true) - begin + 1;
  uint32_t found = 0;
  for (uint32_t index = threadIdx.x % 32; index < tiles * others; index += 32) {
    const uint32_t tile = begin + index / others, other = index % others;
    const uint32_t batch = tile / own, of_batch = tile - batch * own;
    found = join_tiles(found, side == Side::kLhs ? flagged.at(batch, of_batch, other)
                                                 : flagged.at(batch, other, of_batch));
  }
  for (int i = 16; i > 0; i >>= 1) found = join_tiles(found, __shfl_xor_sync(~0u, found, i));
  return found != 0 ? k_range(found, k) : KRange{0, 0};
}

}  // namespace ozaki
