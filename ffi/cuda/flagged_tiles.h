// Tiles of the output that a stage of a ladder has work in: known on the device alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/certificate.h"
#include "status.h"

namespace ozaki {

// The tiles of kTile x kTile outputs; those whose rungs meet `wanted` are flagged.
struct FlaggedTiles {
  const uint32_t* rungs;  // [batch, tiles_m, tiles_n]: common/occupancy.h
  uint32_t wanted;
  int64_t tiles_m, tiles_n;

  FlaggedTiles() = default;
  FlaggedTiles(const uint32_t* rungs, int64_t wanted, int64_t m, int64_t n)
      : rungs(rungs),
        wanted(static_cast<uint32_t>(wanted)),
        tiles_m(tiles_of(m)),
        tiles_n(tiles_of(n)) {}

  OZAKI_HD int64_t count(int64_t batch) const { return batch * tiles_m * tiles_n; }

#if defined(__CUDACC__)
  __device__ __forceinline__ uint32_t word(int64_t batch, int64_t i, int64_t j) const {
    return rungs[(batch * tiles_m + i) * tiles_n + j];
  }
  __device__ __forceinline__ uint32_t set(int64_t batch, int64_t i, int64_t j) const {
    return rungs_of(word(batch, i, j));
  }
  // The word of a flagged tile, 0 of others.
  __device__ __forceinline__ uint32_t at(int64_t batch, int64_t i, int64_t j) const {
    const uint32_t tile = word(batch, i, j);
    return (tile & wanted) != 0 ? tile : 0;
  }

  // Whether no tile at all is flagged, as is the rule on the later rungs. All threads of a CTA must
  // ask. A barrier.
  __device__ __forceinline__ bool none(int64_t batch) const {
    const int64_t tiles = count(batch);
    uint32_t found = 0;
    for (int64_t at = threadIdx.x * 4; at < tiles; at += blockDim.x * 4) {
      if (at + 4 <= tiles) {
        const uint4 sets = *reinterpret_cast<const uint4*>(rungs + at);
        found |= (sets.x | sets.y | sets.z | sets.w) & wanted;
      } else {
        for (int64_t i = at; i < tiles; ++i) found |= rungs[i] & wanted;
      }
    }
    return !__syncthreads_or(found != 0);
  }
#endif
};

// What a walk over the flagged tiles of a launch reads: [0].x is their number, then a {batch, tile
// of the batch element, first element and end of k} each, in the order of the tiles.
using TileList = uint4;

// Enough for tiles of any shape.
constexpr int64_t kSmallestTile = 32;
inline int64_t tile_list_bytes(int64_t batch, int64_t m, int64_t n) {
  const auto tiles = [](int64_t extent) { return (extent + kSmallestTile - 1) / kSmallestTile; };
  return sizeof(TileList) * (1 + batch * tiles(m) * tiles(n));
}

struct Device;
struct TileGrid;

// Enqueues the list of those tiles of `grid` that meet flagged ones, of a product over k.
Status launch_tile_list(const FlaggedTiles& flagged, const TileGrid& grid, int batch, int k,
                        TileList* list, const Device& device, cudaStream_t stream);

}  // namespace ozaki
