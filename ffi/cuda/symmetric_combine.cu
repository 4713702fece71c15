#include <utility>

#include "combine_outputs.cuh"
#include "common/certificate.h"
#include "symmetric_combine.h"
#include "symmetry.h"

namespace ozaki {
namespace {

// A CTA takes kRows x kWidth outputs of one tile, kColumns a thread.
constexpr int kThreads = 128, kColumns = 8, kLanes = 8;
constexpr int kRows = kThreads / kLanes, kWidth = kLanes * kColumns;
static_assert(kTile % kRows == 0 && kTile % kWidth == 0, "a CTA has one tile");

struct Grid {
  int64_t np;
  uint32_t column_blocks, row_blocks;  // of a matrix
  int64_t tiles;                       // along a side
};

// Where the output in a row and a column of the CTA waits for its mirror image to be written.
// Neighbours along either meet different banks.
__device__ __forceinline__ int mirror_place(int row, int column) {
  return column * kRows + (row ^ (column / kColumns * 2 & (kRows - 1)));
}

// Apart, since it is rare.
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
__global__ void __launch_bounds__(kThreads, N <= 15 ? 6 : 5)
    symmetric_combine_kernel(const __grid_constant__ Combine args, const uint8_t* tiles,
                             const Grid grid) {
  using V = Residues<N>;
  static_assert(V::kColumns == kColumns);
  __shared__ uint64_t mirror[kWidth * kRows];
  const uint32_t all_rows = blockIdx.x / grid.column_blocks;
  const uint32_t column_block = blockIdx.x - all_rows * grid.column_blocks;
  const uint32_t batch = all_rows / grid.row_blocks;
  const int64_t first_row = int64_t{all_rows - batch * grid.row_blocks} * kRows;
  const int64_t first_column = int64_t{column_block} * kWidth;
  const uint8_t* const of_batch = tiles + batch * grid.tiles * grid.tiles;
  const int64_t tile_i = first_row / kTile, tile_j = first_column / kTile;
  if ((of_batch[tile_i * grid.tiles + tile_j] & kComputed) == 0) return;
  const bool mirrored = (of_batch[tile_j * grid.tiles + tile_i] & kComputed) == 0;

  const int64_t n = args.a_layout.rows;
  const int r = threadIdx.x / kLanes, first = threadIdx.x % kLanes * kColumns;
  const int64_t i = first_row + r, column = first_column + first;
  unsigned long long* const c = reinterpret_cast<unsigned long long*>(args.c) + batch * n * n;
  bool ordinary = true;
  if (i < n && column < n) {
    typename V::Vector v[V::kPlanes];
    const uint8_t* source =
        static_cast<const uint8_t*>(args.v) + (int64_t{batch} * N * n + i) * grid.np + column;
#pragma unroll
    for (int z = 0; z < N; ++z) {
      v[z] = __ldcs(reinterpret_cast<const typename V::Vector*>(source));
      source += n * grid.np;
    }
    int32_t scale_b[kColumns];
    load_scales(args.scale_b + batch * n, column, n, scale_b);
    unsigned long long* const target = c + i * n + column;
    const bool vectors = column + kColumns <= n && n % 2 == 0;
    ordinary = for_each_pair<V>(
        v, args.scale_a[batch * n + i], scale_b, [&](int pair, const uint64_t (&bits)[2]) {
          if (vectors) {
            __stcs(reinterpret_cast<ulonglong2*>(target + pair), make_ulonglong2(bits[0], bits[1]));
          } else {
            if (column + pair < n) __stcs(target + pair, bits[0]);
            if (column + pair + 1 < n) __stcs(target + pair + 1, bits[1]);
          }
          if (mirrored) {
            mirror[mirror_place(r, first + pair)] = bits[0];
            mirror[mirror_place(r, first + pair + 1)] = bits[1];
          }
        });
  }
  if (mirrored) {
    __syncthreads();
#pragma unroll
    for (int at = threadIdx.x; at < kWidth * kRows; at += kThreads) {
      const int row = at % kRows, of_row = at / kRows;
      const int64_t j = first_column + of_row;
      if (first_row + row < n && j < n) {
        __stcs(c + j * n + first_row + row, mirror[mirror_place(row, of_row)]);
      }
    }
    __syncthreads();  // what is rare is written again
  }
  if (!ordinary) write_rare_outputs<V>(args, grid.np, batch, i, column, mirrored);
}

using Kernel = void (*)(Combine, const uint8_t*, Grid);

template <int... kOffsets>
Kernel kernel_for(int moduli, std::integer_sequence<int, kOffsets...>) {
  static constexpr Kernel kKernels[] = {symmetric_combine_kernel<kMinModuli + kOffsets>...};
  return kKernels[moduli - kMinModuli];
}

}  // namespace

Status launch_symmetric_combine(const Combine& combine, const uint8_t* tiles, int moduli,
                                cudaStream_t stream) {
  const int64_t n = combine.a_layout.rows;
  Grid grid;
  grid.np = padded(n);
  grid.column_blocks = static_cast<uint32_t>((n + kWidth - 1) / kWidth);
  grid.row_blocks = static_cast<uint32_t>((n + kRows - 1) / kRows);
  grid.tiles = tiles_of(n);
  const int64_t blocks = combine.a_layout.batch * grid.row_blocks * grid.column_blocks;
  if (blocks > INT32_MAX) return Status("symmetric_combine: more than 2^31 blocks of outputs");

  constexpr int kCounts = kMaxModuli - kMinModuli + 1;
  const Kernel kernel = kernel_for(moduli, std::make_integer_sequence<int, kCounts>());
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(combine, tiles, grid);
  return launch_status("symmetric_combine_kernel");
}

}  // namespace ozaki
