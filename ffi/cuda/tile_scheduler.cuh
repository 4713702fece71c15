// Which output tiles a CTA (or cluster) computes, in which order.
//
// Tiles are numbered problem by problem. Inside a problem they run down `group_m` tile rows before
// moving on to the next tile column, so that the tiles in flight share operands in L2. The number
// of all tiles may exceed 32 bits; it is never formed: a walk steps in (problem, tile) with a
// carry.
#pragma once

#include <cstdint>

#include "flagged_tiles.h"
#include "mma_launch.h"

namespace ozaki {

struct Tile {
  int problem, m, n;
};

// Of a list: with what is to be multiplied of k.
struct ListedTile : Tile {
  int k_begin, k_end;
};

// Tile `index` of a problem.
__device__ __forceinline__ Tile tile_of(const TileGrid& grid, uint32_t problem, uint32_t index) {
  const uint32_t group_tiles = grid.group_m * grid.tiles_n;
  const uint32_t group = index / group_tiles;
  const uint32_t rest = index - group * group_tiles;
  const uint32_t first_m = group * grid.group_m;
  const uint32_t rows = min(grid.group_m, grid.tiles_m - first_m);
  const uint32_t n = rest / rows;
  return {static_cast<int>(problem), static_cast<int>(first_m + rest - n * rows),
          static_cast<int>(n)};
}

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

  __device__ __forceinline__ Tile tile() const { return tile_of(grid_, problem_, index_); }

 private:
  const TileGrid& grid_;
  uint32_t problem_, index_;
};

// The same walk over the tiles of a list, or of the whole batch where there is none, once for each
// of the first `count` moduli. What next() reads arrives while other work goes on.
class ListedTileScheduler {
 public:
  // Of grid.workers workers.
  __device__ __forceinline__ ListedTileScheduler(const TileGrid& grid, const TileList* list,
                                                 uint32_t batch, uint32_t moduli, uint32_t count,
                                                 int k, uint32_t first)
      : grid_(grid), list_(list), moduli_(moduli), count_(count), k_(k) {
    const uint32_t tiles = list != nullptr ? list->x : batch * grid.tiles;
    tiles_ = max(tiles, 1);
    end_ = tiles != 0 ? count : 0;
    modulus_ = first / tiles_;
    index_ = first - modulus_ * tiles_;
    modulus_stride_ = grid.workers / tiles_;
    index_stride_ = grid.workers - modulus_stride_ * tiles_;
    read();
  }

  __device__ __forceinline__ bool done() const { return modulus_ >= end_; }

  __device__ __forceinline__ void next() {
    modulus_ += modulus_stride_;
    index_ += index_stride_;
    if (index_ >= tiles_) {
      index_ -= tiles_;
      ++modulus_;
    }
    read();
  }

  __device__ __forceinline__ ListedTile tile() const {
    return {tile_of(grid_, of_list_.x * moduli_ + modulus_, of_list_.y),
            static_cast<int>(of_list_.z), static_cast<int>(of_list_.w)};
  }

  __device__ __forceinline__ uint32_t count() const { return count_; }

 private:
  __device__ __forceinline__ void read() {
    const uint32_t batch = index_ / grid_.tiles;
    of_list_ = list_ != nullptr ? list_[1 + index_]
                                : make_uint4(batch, index_ - batch * grid_.tiles, 0, k_);
  }

  const TileGrid& grid_;
  const TileList* list_;
  TileList of_list_;
  uint32_t moduli_, count_, tiles_, end_;
  int k_;
  uint32_t modulus_, index_, modulus_stride_, index_stride_;
};

}  // namespace ozaki
