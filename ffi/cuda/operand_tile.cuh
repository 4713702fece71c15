// A tile of an operand on its way to shared memory.
#pragma once

#include <cstdint>

#include "ptx/cp_async.cuh"
#include "ptx/cp_async_8.cuh"
#include "ptx/mbarrier.cuh"
#include "tiling.h"

namespace ozaki {

// The part of the operand that a CTA works on.
struct TilePosition {
  int64_t row;  // first row, counted through the batch
  int rows;     // rows in the tile
  int64_t k;    // first element of the contraction
  int depth;    // elements of the contraction

  __device__ TilePosition(const Tiling& tiling, int64_t index) {
    const int64_t row_tile = index / tiling.depth_tiles;
    const int64_t sequence = row_tile / tiling.row_tiles;
    const int64_t start = (row_tile - sequence * tiling.row_tiles) * tiling.rows;
    row = sequence * tiling.sequence_rows + start;
    rows = static_cast<int>(min(static_cast<int64_t>(tiling.rows), tiling.sequence_rows - start));
    k = (index - row_tile * tiling.depth_tiles) * tiling.depth;
    depth = static_cast<int>(min(static_cast<int64_t>(tiling.depth), tiling.layout.k - k));
  }
};

// First element of a row, counted through the batch.
__device__ __forceinline__ const uint64_t* row_start(const Tiling& tiling, int64_t row) {
  const uint32_t b = static_cast<uint32_t>(row) / static_cast<uint32_t>(tiling.layout.rows);
  return tiling.x + tiling.layout.offset(b, row - b * tiling.layout.rows, 0);
}

__device__ __forceinline__ int tile_place(const Tiling& tiling, int row, int h) {
  return row * tiling.pitch + (h & 7) * tiling.plane + (h >> 3);
}

// Fills the tile, with zeros past the end of k. Ends with a barrier.
__device__ __forceinline__ void load_tile(const Tiling& tiling, const TilePosition& position,
                                          uint64_t* tile) {
  const int lanes = 1 << tiling.log2_lanes, step = kTileThreads >> tiling.log2_lanes;
  const int fast = threadIdx.x & (lanes - 1), slow = threadIdx.x >> tiling.log2_lanes;
  const uint32_t shared = ptx::shared_address(tile);
  if (tiling.k_contiguous()) {
    for (int row = slow; row < position.rows; row += step) {
      const uint64_t* source = row_start(tiling, position.row + row) + position.k;
#pragma unroll 4
      for (int h = fast; h < position.depth; h += lanes) {
        ptx::cp_async_8(shared + 8 * tile_place(tiling, row, h), source + h);
      }
    }
  } else if (fast < position.rows) {
    const uint64_t* source =
        row_start(tiling, position.row + fast) + position.k * tiling.layout.stride_k;
#pragma unroll 4
    for (int h = slow; h < position.depth; h += step) {
      ptx::cp_async_8(shared + 8 * tile_place(tiling, fast, h),
                      source + h * tiling.layout.stride_k);
    }
  }
  for (int row = threadIdx.x / 32; row < position.rows; row += kTileThreads / 32) {
    for (int h = position.depth + threadIdx.x % 32; h < tiling.filled_depth; h += 32) {
      tile[tile_place(tiling, row, h)] = 0;
    }
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();
}

}  // namespace ozaki
