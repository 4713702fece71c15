#include <algorithm>

#include "device.h"
#include "symmetry.h"

namespace ozaki {
namespace {

// A CTA compares a block of kBlock x kBlock elements with its mirror image.
constexpr int kBlock = 32, kThreads = 256, kPasses = kBlock * kBlock / kThreads;

struct Grid {
  int64_t n, stride_b, pitch;  // of x
  uint32_t blocks;             // along a side
  int64_t flag, tiles;         // the place of the flag, and all of them
};

__global__ void __launch_bounds__(kThreads)
    symmetric_tiles_kernel(uint8_t* tiles, int64_t side, int64_t count) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= count) return;
  const int64_t row = index / side % side, column = index % side;
  tiles[index] = row <= column ? kComputed : 0;
}

// Whoever finds two elements that differ raises the flag, and what starts later leaves at once.
__global__ void __launch_bounds__(kThreads)
    symmetry_kernel(const uint64_t* x, const Grid grid, uint8_t* tiles) {
  // A row of blocks, from the diagonal on, followed by the row as far from the other end: together
  // they are as many for every such pair.
  const uint32_t upper = blockIdx.x / (grid.blocks + 1);
  const uint32_t at = blockIdx.x - upper * (grid.blocks + 1), of_upper = grid.blocks - upper;
  const uint32_t row = at < of_upper ? upper : of_upper - 1;
  const uint32_t column = row + (at < of_upper ? at : at - of_upper);
  const volatile uint8_t* const flag = tiles + grid.flag;
  if (__syncthreads_or((*flag & kFromOwnColumns) != 0)) return;

  __shared__ uint64_t mirror[kBlock][kBlock + 1];
  const int lane = threadIdx.x % kBlock, first = threadIdx.x / kBlock;
  const int64_t i = int64_t{row} * kBlock, j = int64_t{column} * kBlock;
  const uint64_t* const matrix = x + blockIdx.y * grid.stride_b;
  uint64_t here[kPasses];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int r = first + pass * (kThreads / kBlock);
    const bool inside = i + r < grid.n && j + lane < grid.n;
    const bool inside_mirror = j + r < grid.n && i + lane < grid.n;
    here[pass] = inside ? matrix[(i + r) * grid.pitch + j + lane] : 0;
    mirror[r][lane] = inside_mirror ? matrix[(j + r) * grid.pitch + i + lane] : 0;
  }
  __syncthreads();
  bool differs = false;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    differs |= here[pass] != mirror[lane][first + pass * (kThreads / kBlock)];
  }
  if (!__syncthreads_or(differs) || (*flag & kFromOwnColumns) != 0) return;
  for (int64_t at = threadIdx.x; at < grid.tiles; at += kThreads) {
    tiles[at] = kComputed | kFromOwnColumns;
  }
}

}  // namespace

Status launch_symmetry(const double* x, const Layout& layout, uint8_t* tiles, cudaStream_t stream) {
  Grid grid;
  grid.n = layout.rows, grid.stride_b = layout.stride_b;
  grid.pitch = std::max(layout.stride_r, layout.stride_k);
  grid.blocks = static_cast<uint32_t>((grid.n + kBlock - 1) / kBlock);
  const int64_t side = tiles_of(grid.n);
  grid.flag = symmetry_flag(grid.n), grid.tiles = layout.batch * side * side;
  const int64_t blocks = (int64_t{grid.blocks} + 1) * ((int64_t{grid.blocks} + 1) / 2);
  if (blocks > INT32_MAX || layout.batch > 65535) {
    return Status("symmetry: x is larger than a launch");
  }
  symmetric_tiles_kernel<<<static_cast<unsigned>((grid.tiles + kThreads - 1) / kThreads), kThreads,
                           0, stream>>>(tiles, side, grid.tiles);
  OZAKI_RETURN_IF_ERROR(launch_status("symmetric_tiles_kernel"));
  const dim3 ctas(static_cast<unsigned>(blocks), static_cast<unsigned>(layout.batch));
  symmetry_kernel<<<ctas, kThreads, 0, stream>>>(reinterpret_cast<const uint64_t*>(x), grid, tiles);
  return launch_status("symmetry_kernel");
}

}  // namespace ozaki
