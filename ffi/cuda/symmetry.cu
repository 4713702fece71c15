#include <algorithm>

#include "launch.h"
#include "launch_bounds.h"
#include "symmetry.h"

namespace ozaki {
namespace {

// A CTA takes a block of kBlock x kBlock elements and its mirror image.
constexpr int kBlock = 32, kThreads = 256;
constexpr int kRowsPerPass = kThreads / kBlock, kPasses = kBlock / kRowsPerPass;
constexpr int kCtasPerMultiprocessor = 8;

// The blocks of a batch of matrices on one side of the diagonal.
struct BlockGrid {
  uint32_t side, pairs;  // of a matrix: the blocks of a row, and the pairs of rows
  uint32_t count;

  struct Block {
    uint32_t batch;
    int64_t i, j;  // its first row and column, i <= j
  };

  // A row of blocks, from the diagonal on, is followed by the row as far from the other end:
  // together they are as many for every such pair.
  __device__ __forceinline__ Block at(uint32_t index) const {
    const uint32_t pair = index / (side + 1), of_pair = index - pair * (side + 1);
    const uint32_t batch = pair / pairs, upper = pair - batch * pairs, of_upper = side - upper;
    const bool in_upper = of_pair < of_upper;
    return {batch, int64_t{in_upper ? upper : of_upper - 1} * kBlock,
            int64_t{in_upper ? upper + of_pair : of_pair - 1} * kBlock};
  }
};

Status make_block_grid(int64_t batch, int64_t n, BlockGrid& grid) {
  const int64_t side = (n + kBlock - 1) / kBlock, pairs = (side + 1) / 2;
  if (batch * pairs * (side + 1) > INT32_MAX) {
    return Status("symmetry: more than 2^31 blocks of a matrix");
  }
  grid.side = static_cast<uint32_t>(side), grid.pairs = static_cast<uint32_t>(pairs);
  grid.count = static_cast<uint32_t>(batch * pairs * (side + 1));
  return Status();
}

struct Matrices {
  const uint64_t* x;
  int64_t n, stride_b, pitch;
};

__global__ void __launch_bounds__(kThreads)
    symmetric_tiles_kernel(uint32_t* tiles, int64_t side, int64_t count) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= count) return;
  const int64_t row = index / side % side, column = index % side;
  tiles[index] = row <= column ? kComputed : 0;
}

// Whoever finds two elements that differ raises the flag, and all others leave when they see it.
__global__ void __launch_bounds__(kThreads, resident(kThreads, kCtasPerMultiprocessor))
    symmetry_kernel(const Matrices of, const BlockGrid grid, uint32_t* tiles, int64_t tile_count,
                    int64_t flag) {
  __shared__ uint64_t mirror[kBlock][kBlock + 1];
  const int lane = threadIdx.x % kBlock, first = threadIdx.x / kBlock;
  for (uint32_t index = blockIdx.x; index < grid.count; index += gridDim.x) {
    const auto [batch, i, j] = grid.at(index);
    const uint64_t* const x = of.x + batch * of.stride_b;
    uint64_t here[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int r = first + pass * kRowsPerPass;
      const bool inside = i + r < of.n && j + lane < of.n;
      const bool inside_mirror = j + r < of.n && i + lane < of.n;
      here[pass] = inside ? x[(i + r) * of.pitch + j + lane] : 0;
      mirror[r][lane] = inside_mirror ? x[(j + r) * of.pitch + i + lane] : 0;
    }
    const uint32_t raised = *static_cast<const volatile uint32_t*>(tiles + flag) & kFromOwnColumns;
    __syncthreads();
    bool differs = false;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      differs |= here[pass] != mirror[lane][first + pass * kRowsPerPass];
    }
    if (__syncthreads_or(raised)) return;
    if (__syncthreads_or(differs)) {
      for (int64_t tile = threadIdx.x; tile < tile_count; tile += kThreads) {
        tiles[tile] = kComputed | kFromOwnColumns;
      }
      return;
    }
  }
}

__global__ void __launch_bounds__(kThreads, resident(kThreads, kCtasPerMultiprocessor))
    mirror_kernel(uint64_t* c, int64_t n, const BlockGrid grid, const uint32_t* tiles,
                  int64_t tiles_of_side) {
  __shared__ uint64_t image[kBlock][kBlock + 1];
  const int lane = threadIdx.x % kBlock, first = threadIdx.x / kBlock;
  for (uint32_t index = blockIdx.x; index < grid.count; index += gridDim.x) {
    const auto [batch, i, j] = grid.at(index);
    const int64_t tile = (batch * tiles_of_side + j / kTile) * tiles_of_side + i / kTile;
    if ((tiles[tile] & kComputed) != 0) continue;
    uint64_t* const of_batch = c + batch * n * n;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int r = first + pass * kRowsPerPass;
      if (i + r < n && j + lane < n) image[r][lane] = of_batch[(i + r) * n + j + lane];
    }
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int r = first + pass * kRowsPerPass;
      if (j + r < n && i + lane < n) of_batch[(j + r) * n + i + lane] = image[lane][r];
    }
    __syncthreads();
  }
}

unsigned resident(const BlockGrid& grid, const Device& device) {
  return std::min<unsigned>(grid.count, kCtasPerMultiprocessor * device.multiprocessors);
}

}  // namespace

Status launch_symmetry(const double* x, const Layout& layout, uint32_t* tiles, const Device& device,
                       cudaStream_t stream) {
  const int64_t n = layout.rows, side = tiles_of(n), count = layout.batch * side * side;
  BlockGrid grid;
  OZAKI_RETURN_IF_ERROR(make_block_grid(layout.batch, n, grid));
  OZAKI_RETURN_IF_ERROR(launch("symmetric_tiles_kernel", symmetric_tiles_kernel,
                               {(count + kThreads - 1) / kThreads, kThreads}, device, stream, tiles,
                               side, count));
  const Matrices matrices = {reinterpret_cast<const uint64_t*>(x), n, layout.stride_b,
                             layout.stride_k == 1 ? layout.stride_r : layout.stride_k};
  return launch("symmetry_kernel", symmetry_kernel, {resident(grid, device), kThreads}, device,
                stream, matrices, grid, tiles, count, symmetry_flag(n));
}

Status launch_mirror(double* c, int64_t batch, int64_t n, const uint32_t* tiles,
                     const Device& device, cudaStream_t stream) {
  BlockGrid grid;
  OZAKI_RETURN_IF_ERROR(make_block_grid(batch, n, grid));
  return launch("mirror_kernel", mirror_kernel, {resident(grid, device), kThreads}, device, stream,
                reinterpret_cast<uint64_t*>(c), n, grid, tiles, tiles_of(n));
}

}  // namespace ozaki
