#include "flagged_tiles.h"
#include "launch.h"
#include "mma_launch.h"
#include "ptx/dependent_launch.cuh"
#include "tile_scheduler.cuh"

namespace ozaki {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
static_assert(kWarps == 32, "a warp adds up what the warps have found");

// One CTA keeps the order without a second pass: the list is short beside what its tiles cost.
__global__ void __launch_bounds__(kThreads)
    tile_list_kernel(const FlaggedTiles flagged, const TileGrid grid, uint32_t batch, int k,
                     TileList* list) {
  __shared__ uint32_t of_warp[2][kWarps];
  ptx::launch_dependents();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t all = batch * grid.tiles;
  uint32_t listed = 0;
  for (uint32_t first = 0, turn = 0; first < all; first += kThreads, turn ^= 1) {
    const uint32_t index = first + threadIdx.x, b = index / grid.tiles;
    const uint32_t of_batch = index - b * grid.tiles;
    uint32_t any = 0;
    if (index < all) {
      // The first and the last flagged tile that it meets, in both directions: no more than two.
      const Tile tile = tile_of(grid, b, of_batch);
      const int64_t i = int64_t{tile.m} * grid.rows / kTile,
                    j = int64_t{tile.n} * grid.columns / kTile;
      const int64_t i_last =
          min((int64_t{tile.m} + 1) * grid.rows - 1, kTile * flagged.tiles_m - 1) / kTile;
      const int64_t j_last =
          min((int64_t{tile.n} + 1) * grid.columns - 1, kTile * flagged.tiles_n - 1) / kTile;
      any = join_tiles(join_tiles(flagged.at(b, i, j), flagged.at(b, i, j_last)),
                       join_tiles(flagged.at(b, i_last, j), flagged.at(b, i_last, j_last)));
    }
    const uint32_t found = __ballot_sync(~0u, any != 0);
    if (lane == 0) of_warp[turn][warp] = __popc(found);
    __syncthreads();
    const uint32_t of_lane = of_warp[turn][lane];
    const uint32_t before = __reduce_add_sync(~0u, lane < warp ? of_lane : 0);
    if (any != 0) {
      // A tile without any k would have no stage to wait for.
      KRange range = k_range(any, k);
      if (range.begin >= range.end) range = {0, k};
      list[1 + listed + before + __popc(found & ((1u << lane) - 1))] =
          make_uint4(b, of_batch, range.begin, range.end);
    }
    listed += __reduce_add_sync(~0u, of_lane);
  }
  if (threadIdx.x == 0) list[0] = make_uint4(listed, 0, 0, 0);
}

}  // namespace

Status launch_tile_list(const FlaggedTiles& flagged, const TileGrid& grid, int batch, int k,
                        TileList* list, const Device& device, cudaStream_t stream) {
  return launch("tile_list_kernel", tile_list_kernel, {1, kThreads}, device, stream, flagged, grid,
                static_cast<uint32_t>(batch), k, list);
}

}  // namespace ozaki
