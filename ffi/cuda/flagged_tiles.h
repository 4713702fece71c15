// Tiles of the output that a stage of a ladder has work in: known on the device alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/certificate.h"
#include "status.h"

namespace ozaki {

// The sets of rungs of the tiles of kTile x kTile outputs; those that meet `wanted` are flagged.
struct FlaggedTiles {
  const uint8_t* rungs;  // [batch, tiles_m, tiles_n], bit r for rung r
  uint32_t wanted;
  int64_t tiles_m, tiles_n;

  FlaggedTiles() = default;
  FlaggedTiles(const uint8_t* rungs, int64_t wanted, int64_t m, int64_t n)
      : rungs(rungs),
        wanted(static_cast<uint32_t>(wanted)),
        tiles_m(tiles_of(m)),
        tiles_n(tiles_of(n)) {}

#if defined(__CUDACC__)
  __device__ __forceinline__ uint32_t set(int64_t batch, int64_t i, int64_t j) const {
    return rungs[(batch * tiles_m + i) * tiles_n + j];
  }
  __device__ __forceinline__ bool at(int64_t batch, int64_t i, int64_t j) const {
    return (set(batch, i, j) & wanted) != 0;
  }

  // Whether no tile at all is flagged, as is the rule on the later rungs. All threads of a CTA must
  // ask. A barrier.
  __device__ __forceinline__ bool none(int64_t batch) const {
    const int64_t tiles = batch * tiles_m * tiles_n;
    uint32_t found = 0;
    for (int64_t at = threadIdx.x * 16; at < tiles; at += blockDim.x * 16) {
      if (at + 16 <= tiles) {
        const uint4 sets = *reinterpret_cast<const uint4*>(rungs + at);
        found |= (sets.x | sets.y | sets.z | sets.w) & wanted * 0x01010101u;
      } else {
        for (int64_t i = at; i < tiles; ++i) found |= rungs[i] & wanted;
      }
    }
    return !__syncthreads_or(found != 0);
  }

  // Whether any tile of some rows of the lhs, or columns as rows of the rhs, is flagged: `count`
  // rows from `first`, counted through the batch. All threads of a CTA must ask. A barrier.
  __device__ __forceinline__ bool any(Side side, int64_t first, int64_t count, int64_t rows) const {
    const uint32_t own = side == Side::kLhs ? tiles_m : tiles_n;
    const uint32_t others = side == Side::kLhs ? tiles_n : tiles_m;
    const auto tile_of = [&](uint32_t row) {
      const uint32_t batch = row / static_cast<uint32_t>(rows);
      return batch * own + (row - batch * static_cast<uint32_t>(rows)) / uint32_t{kTile};
    };
    const uint32_t begin = tile_of(first), tiles = tile_of(first + count - 1) - begin + 1;
    bool found = false;
    for (uint32_t index = threadIdx.x; index < tiles * others; index += blockDim.x) {
      const uint32_t tile = begin + index / others, other = index % others;
      const uint32_t batch = tile / own, of_batch = tile - batch * own;
      found |= side == Side::kLhs ? at(batch, of_batch, other) : at(batch, other, of_batch);
    }
    return __syncthreads_or(found);
  }
#endif
};

// What a walk over the flagged tiles of a launch reads: [0].x is their number, then a {batch, tile
// of the batch element} each, in the order of the tiles.
using TileList = uint2;

// Enough for tiles of any shape.
constexpr int64_t kSmallestTile = 32;
inline int64_t tile_list_bytes(int64_t batch, int64_t m, int64_t n) {
  const auto tiles = [](int64_t extent) { return (extent + kSmallestTile - 1) / kSmallestTile; };
  return sizeof(TileList) * (1 + batch * tiles(m) * tiles(n));
}

struct TileGrid;

// Enqueues the list of those tiles of `grid` that meet flagged ones.
Status launch_tile_list(const FlaggedTiles& flagged, const TileGrid& grid, int batch,
                        TileList* list, cudaStream_t stream);

}  // namespace ozaki
