// The flagged ones of many pieces of work, spread over the CTAs of a launch.
#pragma once

#include <cstdint>

#include "flagged_tiles.h"

namespace ozaki {

// visit(index) for every index < count of this CTA where flagged(index). All threads of a CTA of
// kThreads call it; visit() is called by all. A thread looks at one index at a time.
template <int kThreads, typename Flagged, typename Visit>
__device__ __forceinline__ void for_flagged(int64_t count, const Flagged& flagged,
                                            const Visit& visit) {
  __shared__ uint32_t found[kThreads / 32];
  // A CTA has an index of each row of gridDim.x. Rows are turned by multiples of the golden ratio,
  // for those on a diagonal of the output may all be below one another.
  const auto index_in = [](int64_t row) {
    const uint32_t turned =
        blockIdx.x + __umulhi(static_cast<uint32_t>(row) * 2654435769u, gridDim.x);
    return row * gridDim.x + (turned < gridDim.x ? turned : turned - gridDim.x);
  };
  for (int64_t first = 0; first * gridDim.x < count; first += kThreads) {
    const int64_t own = index_in(first + threadIdx.x);
    const uint32_t of_warp = __ballot_sync(~0u, own < count && flagged(own));
    __syncthreads();
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = of_warp;
    __syncthreads();
    for (int w = 0; w < kThreads / 32; ++w) {
      for (uint32_t rest = found[w]; rest != 0; rest &= rest - 1) {
        visit(index_in(first + w * 32 + __ffs(rest) - 1));
      }
    }
  }
}

// The first output of a flagged tile, its word, and which part of it is meant.
struct PartOfTile {
  int64_t batch, row, column;
  uint32_t word;
  int part;
};

// visit(part) for the parts of flagged tiles, kParts a tile, of `parts` in all.
template <int kThreads, int kParts, typename Visit>
__device__ __forceinline__ void for_parts_of_flagged(const FlaggedTiles& flagged, int64_t parts,
                                                     const Visit& visit) {
  for_flagged<kThreads>(
      parts, [&](int64_t index) { return (flagged.rungs[index / kParts] & flagged.wanted) != 0; },
      [&](int64_t index) {
        const int64_t tile = index / kParts, row_tile = tile / flagged.tiles_n;
        const int64_t batch = row_tile / flagged.tiles_m;
        visit(PartOfTile{batch, (row_tile - batch * flagged.tiles_m) * kTile,
                         (tile - row_tile * flagged.tiles_n) * kTile, flagged.rungs[tile],
                         static_cast<int>(index % kParts)});
      });
}

}  // namespace ozaki
