#include <algorithm>
#include <utility>

#include "combine_outputs.cuh"
#include "ladder_combine.h"
#include "launch.h"
#include "launch_bounds.h"
#include "output_grid.cuh"

namespace ozaki {
namespace {

constexpr int kThreads = 128, kColumns = Residues<kMaxModuli>::kColumns;

// Writes a thread's outputs again, one by one, where some are no ordinary numbers.
template <int N>
__device__ __noinline__ void write_rare_outputs(const Combine& args, int64_t np, int planes,
                                                uint32_t row, uint32_t column, uint32_t wanted) {
  const uint32_t m = static_cast<uint32_t>(args.a_layout.rows), batch = row / m;
  const uint32_t i = row - batch * m;
  uint64_t* const target = reinterpret_cast<uint64_t*>(args.c) + row * args.b_layout.rows + column;
  for (; wanted != 0; wanted &= wanted - 1) {
    const int e = __ffs(wanted) - 1;
    target[e] = rare_output<Residues<N>>(args, np, batch, i, column + e, planes);
  }
}

// The columns of a thread whose outputs are wanted, bit by bit. set: of their tile.
__device__ __forceinline__ uint32_t wanted_columns(const LadderCombine& args, uint32_t set,
                                                   int64_t at, int64_t column) {
  const int64_t n = args.product.b_layout.rows;
  uint32_t wanted = (1u << kColumns) - 1;
  if (column + kColumns > n) wanted >>= column + kColumns - n;
  if ((set & ~args.flagged.wanted) == 0) return wanted;
  const uint2 rungs = *reinterpret_cast<const uint2*>(args.rung + at);
#pragma unroll
  for (int e = 0; e < kColumns; ++e) {
    const uint32_t rung = (e < 4 ? rungs.x : rungs.y) >> (8 * (e % 4)) & 31;
    wanted &= ~((~args.flagged.wanted >> rung & 1) << e);
  }
  return wanted;
}

// What a thread writes of a block: outputs of row `row`, counted through the batch, from `column` on,
// in a tile of outputs of the rungs `set`; nothing if that is 0.
struct Place {
  uint32_t row, batch, column, set;

  __device__ __forceinline__ Place(const LadderCombine& args, const OutputGrid& grid,
                                   uint32_t block) {
    const uint32_t m = static_cast<uint32_t>(args.product.a_layout.rows);
    const OutputGrid::Place first = grid.place<kThreads, kColumns>(block);
    row = first.row, column = first.column, batch = row / m;
    const bool inside = batch < args.product.a_layout.batch && column < args.product.b_layout.rows;
    set = inside ? args.flagged.set(batch, (row - batch * m) / uint32_t{kTile},
                                    column / uint32_t{kTile})
                 : 0;
  }
};

template <int N>
__device__ __forceinline__ void write_outputs(const LadderCombine& args, const OutputGrid& grid,
                                              int planes, const Place& place) {
  using V = Residues<N>;
  const Combine& product = args.product;
  const int64_t m = product.a_layout.rows, n = product.b_layout.rows, column = place.column;
  const int64_t row = place.row, batch = place.batch, i = row - batch * m;
  if ((place.set & args.flagged.wanted) == 0) return;
  const uint32_t wanted = wanted_columns(args, place.set, row * grid.np + column, column);
  if (wanted == 0) return;

  typename V::Vector v[N];
  const uint8_t* source =
      static_cast<const uint8_t*>(product.v) + (batch * planes * m + i) * grid.np + column;
#pragma unroll
  for (int z = 0; z < N; ++z) {
    v[z] = __ldcs(reinterpret_cast<const typename V::Vector*>(source));
    source += m * grid.np;
  }
  const int32_t scale_a = product.scale_a[row];
  int32_t scale_b[kColumns];
  load_scales(product.scale_b + batch * n, column, n, scale_b);
  unsigned long long* const target =
      reinterpret_cast<unsigned long long*>(product.c) + row * n + column;
  const bool vectors = wanted == (1u << kColumns) - 1 && n % 2 == 0;
  const bool ordinary =
      for_each_pair<V>(v, scale_a, scale_b, [&](int pair, const uint64_t (&c)[2]) {
        if (vectors) {
          __stcs(reinterpret_cast<ulonglong2*>(target + pair), make_ulonglong2(c[0], c[1]));
        } else {
          if (wanted >> pair & 1) __stcs(target + pair, c[0]);
          if (wanted >> pair & 2) __stcs(target + pair + 1, c[1]);
        }
      });
  if (!ordinary) write_rare_outputs<N>(product, grid.np, planes, place.row, place.column, wanted);
}

// The number of moduli is the same for all threads: one of the bodies runs, that of most is found
// first.
template <int kMost, int... kOffsets>
__device__ __forceinline__ void write_counted(int count, const LadderCombine& args,
                                              const OutputGrid& grid, int planes,
                                              const Place& place,
                                              std::integer_sequence<int, kOffsets...>) {
  (void)((count == kMost - kOffsets &&
          (write_outputs<kMost - kOffsets>(args, grid, planes, place), true)) ||
         ...);
}

template <int kMost>
__global__ void __launch_bounds__(kThreads, resident(kThreads, kMost <= 15 ? 6 : 5))
    ladder_combine_kernel(const __grid_constant__ LadderCombine args, const OutputGrid grid,
                          int planes) {
  if (args.seldom && args.flagged.none(args.product.a_layout.batch)) return;
#pragma unroll 1
  for (uint32_t block = blockIdx.x; block < static_cast<uint32_t>(grid.blocks);
       block += gridDim.x) {
    const Place place(args, grid, block);
    // The count is read here, at the same time as the set of the place.
    write_counted<kMost>(*args.count, args, grid, planes, place,
                         std::make_integer_sequence<int, kMost - kMinModuli + 1>());
  }
}

}  // namespace

Status launch_ladder_combine(const LadderCombine& combine, int planes, const Device& device,
                             cudaStream_t stream) {
  const OutputGrid grid(combine.product.a_layout, combine.product.b_layout, kThreads, kColumns);
  if (grid.blocks > INT32_MAX) return Status("ladder_combine: more than 2^31 blocks of outputs");
  // Seldom is any tile flagged: CTAs that find so are to be few.
  const int64_t ctas =
      combine.seldom ? std::min(grid.blocks, int64_t{5} * device.multiprocessors) : grid.blocks;

  const auto kernel = planes <= 15 ? ladder_combine_kernel<15> : ladder_combine_kernel<kMaxModuli>;
  return launch("ladder_combine_kernel", kernel, {ctas, kThreads}, device, stream, combine, grid,
                planes);
}

}  // namespace ozaki
