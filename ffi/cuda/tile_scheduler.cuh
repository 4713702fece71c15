// Which output tiles a CTA (or cluster) computes, in which order.
//
// Tiles are numbered problem by problem. Inside a problem they run down `group_m` tile rows before
// moving on to the next tile column, so that the tiles in flight share operands in L2. The number
// of all tiles may exceed 32 bits; it is never formed: a walk steps in (problem, tile) with a
// carry.
#pragma once

#include <cstdint>

#include "mma_launch.h"

namespace ozaki {

struct Tile {
  int problem, m, n;
};

class TileScheduler {
 public:
  // Worker `first` of the grid.workers workers among which the tiles are dealt out.
  __device__ __forceinline__ TileScheduler(const TileGrid& grid, uint32_t first)
      : grid_(grid), problem_(first / grid.tiles), index_(first % grid.tiles) {}

  __device__ __forceinline__ bool done() const { return problem_ >= grid_.problems; }

  __device__ __forceinline__ void next() {
    problem_ += grid_.problem_stride;
    index_ += grid_.index_stride;
    if (index_ >= grid_.tiles) {
      index_ -= grid_.tiles;
      ++problem_;
    }
  }

  __device__ __forceinline__ Tile tile() const {
    const uint32_t group_tiles = grid_.group_m * grid_.tiles_n;
    const uint32_t group = index_ / group_tiles;
    const uint32_t index = index_ - group * group_tiles;
    const uint32_t first_m = group * grid_.group_m;
    const uint32_t rows = min(grid_.group_m, grid_.tiles_m - first_m);
    const uint32_t n = index / rows;
    return {static_cast<int>(problem_), static_cast<int>(first_m + index - n * rows),
            static_cast<int>(n)};
  }

 private:
  const TileGrid& grid_;
  uint32_t problem_, index_;
};

}  // namespace ozaki
