// A tile of an operand on its way to shared memory.
#pragma once

#include <cstdint>

#include "ptx/cp_async.cuh"
#include "ptx/cp_async_8.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "tiling.h"

namespace ozaki {

// The part of the operand that a CTA works on.
struct TilePosition {
  int64_t row;  // first row, counted through the batch
  int rows;     // rows in the tile
  uint32_t k;   // first element of the contraction
  int depth;    // elements of the contraction, none in a tile of padding

  __device__ TilePosition(const Tiling& tiling, uint32_t index) {
    const uint32_t row_tile = index / static_cast<uint32_t>(tiling.depth_tiles);
    const uint32_t sequence = row_tile / static_cast<uint32_t>(tiling.row_tiles);
    const int64_t start = int64_t{row_tile - sequence * tiling.row_tiles} * tiling.rows;
    row = sequence * tiling.sequence_rows + start;
    rows = static_cast<int>(min(static_cast<int64_t>(tiling.rows), tiling.sequence_rows - start));
    k = (index - row_tile * tiling.depth_tiles) * tiling.depth;
    depth = static_cast<int>(clamp<int64_t>(tiling.layout.k - k, 0, tiling.depth));
  }
};

// First element of a row, counted through the batch.
__device__ __forceinline__ const uint64_t* row_start(const Tiling& tiling, int64_t row) {
  const uint32_t b = static_cast<uint32_t>(row) / static_cast<uint32_t>(tiling.layout.rows);
  return tiling.x + tiling.layout.offset(b, row - b * tiling.layout.rows, 0);
}

// Copies the tile element by element, at whatever addresses.
template <typename Meanwhile>
__device__ __forceinline__ void copy_elements(const Tiling& tiling, const TilePosition& position,
                                              uint32_t tile, Meanwhile meanwhile) {
  const int lanes = 1 << tiling.log2_lanes, step = kTileThreads >> tiling.log2_lanes;
  const int fast = threadIdx.x & (lanes - 1), slow = threadIdx.x >> tiling.log2_lanes;
  if (tiling.k_contiguous()) {
    for (int row = slow; row < position.rows; row += step) {
      const uint64_t* source = row_start(tiling, position.row + row) + position.k;
      const uint32_t target = tile + 8 * row * tiling.pitch;
#pragma unroll 4
      for (int h = fast; h < position.depth; h += lanes) {
        ptx::cp_async_8(target + 8 * h, source + h);
      }
    }
  } else if (const int odd = tiling.layout.parts - 1, row = fast >> odd; row < position.rows) {
    const uint64_t* source = row_start(tiling, position.row + row) +
                             tiling.layout.along_k(position.k) + (fast & odd) +
                             slow * tiling.layout.stride_k;
    const uint32_t target = tile + 8 * (row * tiling.pitch + (fast & odd));
    const int64_t stride = step * tiling.layout.stride_k;
#pragma unroll 4
    for (int element = slow; element << odd < position.depth; element += step, source += stride) {
      ptx::cp_async_8(target + 8 * (element << odd), source);
    }
  }
  ptx::cp_async_commit();
  meanwhile();
  ptx::cp_async_wait<0>();
}

// Copies the tile row by row.
template <typename Meanwhile>
__device__ __forceinline__ void copy_rows(const Tiling& tiling, const TilePosition& position,
                                          uint32_t tile, Meanwhile meanwhile) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint32_t barrier = tile + 8 * tiling.rows * tiling.pitch;
  const int bytes = 8 * position.depth, row = threadIdx.x;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_bytes(barrier, position.rows * bytes);
  if (row < position.rows) {
    ptx::cp_async_bulk(tile + 8 * row * tiling.pitch,
                       row_start(tiling, position.row + row) + position.k, bytes, barrier);
  }
  meanwhile();
  ptx::mbarrier_wait(barrier, 0);
#endif
}

struct DoNothing {
  __device__ __forceinline__ void operator()() const {}
};

// Fills the tile, with zeros past the end of k, and does something else meanwhile. Ends with a
// barrier.
template <typename Meanwhile = DoNothing>
__device__ __forceinline__ void load_tile(const Tiling& tiling, const TilePosition& position,
                                          uint64_t* tile, Meanwhile meanwhile = {}) {
  for (int row = threadIdx.x / 32; row < position.rows; row += kTileThreads / 32) {
    for (int h = position.depth + threadIdx.x % 32; h < tiling.filled_depth; h += 32) {
      tile[row * tiling.pitch + h] = 0;
    }
  }
  if (tiling.bulk) {
    copy_rows(tiling, position, ptx::shared_address(tile), meanwhile);
  } else {
    copy_elements(tiling, position, ptx::shared_address(tile), meanwhile);
  }
  __syncthreads();
}

}  // namespace ozaki
