#include <utility>

#include "combine_outputs.cuh"
#include "common/certificate.h"
#include "launch.h"
#include "launch_bounds.h"
#include "symmetric_combine.h"
#include "symmetry.h"

namespace ozaki {
namespace {

// A CTA takes kRows x kWidth outputs of one tile, kColumns a thread.
constexpr int kThreads = 128, kLanes = 16, kColumns = 8;
constexpr int kRows = kThreads / kLanes, kWidth = kLanes * kColumns;
static_assert(kTile % kRows == 0 && kTile % kWidth == 0, "a CTA has one tile");

struct Grid {
  int64_t np;
  uint32_t column_blocks, row_blocks;  // of a matrix
  int64_t tiles;                       // along a side
};

// Where an output of a CTA waits to be stored. Neighbours along a row and along a column meet few
// of each other's banks.
__device__ __forceinline__ int place(int row, int column) {
  return column * kRows + (row ^ ((column + column / kColumns) & (kRows - 1)));
}

// Writes a thread's outputs again, one by one, where some are no ordinary numbers.
template <typename V>
__device__ __noinline__ void write_rare_outputs(const Combine& args, int64_t np, int64_t batch,
                                                int64_t i, int64_t column, bool mirrored) {
  const int64_t n = args.a_layout.rows;
  uint64_t* const c = reinterpret_cast<uint64_t*>(args.c) + batch * n * n;
  for (int64_t j = column; j < min(column + kColumns, n); ++j) {
    const uint64_t bits = rare_output<V>(args, np, batch, i, j);
    c[i * n + j] = bits;
    if (mirrored) c[j * n + i] = bits;
  }
}

template <int N>
__global__ void __launch_bounds__(kThreads, resident(kThreads, N <= 15 ? 6 : 5, 4))
    symmetric_combine_kernel(const __grid_constant__ Combine args, const uint32_t* tiles,
                             const Grid grid) {
  using V = Residues<N>;
  static_assert(V::kColumns == kColumns);
  __shared__ unsigned long long outputs[kRows * kWidth];
  const uint32_t all_rows = blockIdx.x / grid.column_blocks;
  const uint32_t column_block = blockIdx.x - all_rows * grid.column_blocks;
  const uint32_t batch = all_rows / grid.row_blocks;
  const int64_t first_row = int64_t{all_rows - batch * grid.row_blocks} * kRows;
  const int64_t first_column = int64_t{column_block} * kWidth;
  const uint32_t* const of_batch = tiles + batch * grid.tiles * grid.tiles;
  const int64_t tile_i = first_row / kTile, tile_j = first_column / kTile;
  if ((of_batch[tile_i * grid.tiles + tile_j] & kComputed) == 0) return;

  const int64_t n = args.a_layout.rows;
  const int row = threadIdx.x / kLanes, first = threadIdx.x % kLanes * kColumns;
  const int64_t i = first_row + row, column = first_column + first;
  bool ordinary = true;
  if (i < n && column < n) {
    typename V::Vector v[N];
    const uint8_t* source =
        static_cast<const uint8_t*>(args.v) + (int64_t{batch} * N * n + i) * grid.np + column;
#pragma unroll
    for (int z = 0; z < N; ++z) {
      v[z] = __ldcs(reinterpret_cast<const typename V::Vector*>(source));
      source += n * grid.np;
    }
    int32_t scale_b[kColumns];
    load_scales(args.scale_b + batch * n, column, n, scale_b);
    const int32_t scale_a = args.scale_a[batch * n + i];
    ordinary = for_each_pair<V>(v, scale_a, scale_b, [&](int pair, const uint64_t (&bits)[2]) {
      outputs[place(row, first + pair)] = bits[0];
      outputs[place(row, first + pair + 1)] = bits[1];
    });
  }
  __syncthreads();
  const bool mirrored = (of_batch[tile_j * grid.tiles + tile_i] & kComputed) == 0;

  // Neighbouring threads store neighbouring outputs, of the tile and of its mirror image.
  unsigned long long* const c = reinterpret_cast<unsigned long long*>(args.c) + batch * n * n;
#pragma unroll
  for (int at = threadIdx.x; at < kRows * kWidth; at += kThreads) {
    const int r = at / kWidth, j = at % kWidth;
    if (first_row + r < n && first_column + j < n) {
      __stcs(c + (first_row + r) * n + first_column + j, outputs[place(r, j)]);
    }
  }
  if (mirrored) {
#pragma unroll
    for (int at = threadIdx.x; at < kRows * kWidth; at += kThreads) {
      const int r = at % kRows, j = at / kRows;
      if (first_row + r < n && first_column + j < n) {
        __stcs(c + (first_column + j) * n + first_row + r, outputs[place(r, j)]);
      }
    }
  }
  if (__syncthreads_or(!ordinary) && !ordinary) {
    write_rare_outputs<V>(args, grid.np, batch, i, column, mirrored);
  }
}

using Kernel = void (*)(Combine, const uint32_t*, Grid);

template <int... kOffsets>
Kernel kernel_for(int moduli, std::integer_sequence<int, kOffsets...>) {
  static constexpr Kernel kKernels[] = {symmetric_combine_kernel<kMinModuli + kOffsets>...};
  return kKernels[moduli - kMinModuli];
}

}  // namespace

Status launch_symmetric_combine(const Combine& combine, const uint32_t* tiles, int moduli,
                                const Device& device, cudaStream_t stream) {
  const int64_t n = combine.a_layout.rows;
  Grid grid;
  grid.np = padded(n);
  grid.column_blocks = static_cast<uint32_t>((n + kWidth - 1) / kWidth);
  grid.row_blocks = static_cast<uint32_t>((n + kRows - 1) / kRows);
  grid.tiles = tiles_of(n);
  const int64_t blocks = combine.a_layout.batch * grid.row_blocks * grid.column_blocks;

  constexpr int kCounts = kMaxModuli - kMinModuli + 1;
  const Kernel kernel = kernel_for(moduli, std::make_integer_sequence<int, kCounts>());
  return launch("symmetric_combine_kernel", kernel, {blocks, kThreads}, device, stream, combine,
                tiles, grid);
}

}  // namespace ozaki
