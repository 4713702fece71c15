#include "device.h"
#include "flagged_tiles.h"
#include "mma_launch.h"
#include "tile_scheduler.cuh"

namespace ozaki {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kItems = 4;  // of a thread, one after the other, at a time

// One CTA keeps the order without a second pass: the list is short beside what its tiles cost.
__global__ void __launch_bounds__(kThreads)
    tile_list_kernel(const FlaggedTiles flagged, const TileGrid grid, uint32_t batch,
                     TileList* list) {
  __shared__ uint32_t of_warp[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t all = batch * grid.tiles;
  uint32_t listed = 0;
  for (uint32_t first = 0; first < all; first += kThreads * kItems) {
    uint32_t found = 0;  // a bit an item
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const uint32_t index = first + threadIdx.x * kItems + item;
      if (index >= all) break;
      const uint32_t b = index / grid.tiles;
      const Tile tile = tile_of(grid, b, index - b * grid.tiles);
      const int64_t row = int64_t{tile.m} * grid.rows, column = int64_t{tile.n} * grid.columns;
      const int64_t i_end = min(tiles_of(row + grid.rows), flagged.tiles_m);
      const int64_t j_end = min(tiles_of(column + grid.columns), flagged.tiles_n);
      bool any = false;
      for (int64_t i = row / kTile; i < i_end; ++i) {
        for (int64_t j = column / kTile; j < j_end; ++j) {
          any |= flagged.at(b, i, j);
        }
      }
      found |= any << item;
    }

    const uint32_t own = __popc(found);
    uint32_t before = own;  // the sum over the lanes up to this one
    for (int i = 1; i < 32; i *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, before, i);
      if (lane >= i) before += other;
    }
    if (lane == 31) of_warp[warp] = before;
    __syncthreads();
    before += listed - own;
    for (int w = 0; w < kWarps; ++w) {
      const uint32_t count = of_warp[w];
      if (w < warp) before += count;
      listed += count;
    }
    __syncthreads();
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      if ((found >> item & 1) == 0) continue;
      const uint32_t index = first + threadIdx.x * kItems + item, b = index / grid.tiles;
      list[1 + before++] = make_uint2(b, index - b * grid.tiles);
    }
  }
  if (threadIdx.x == 0) list[0] = make_uint2(listed, 0);
}

}  // namespace

Status launch_tile_list(const FlaggedTiles& flagged, const TileGrid& grid, int batch,
                        TileList* list, cudaStream_t stream) {
  tile_list_kernel<<<1, kThreads, 0, stream>>>(flagged, grid, batch, list);
  return launch_status("tile_list_kernel");
}

}  // namespace ozaki
