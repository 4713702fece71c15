#include <algorithm>
#include <utility>

#include "common/classify.h"
#include "common/crt.h"
#include "common/scale.h"
#include "device.h"
#include "ladder_combine.h"
#include "pair_bytes.cuh"
#include "special_outputs.cuh"

namespace ozaki {
namespace {

constexpr int kThreads = 256, kColumns = 8;

// As in combine.cu: a CTA covers (kThreads >> log2_lanes) rows, counted through the batch.
struct Grid {
  int64_t np;
  int log2_lanes;
  uint32_t column_blocks, blocks;
};

// What a thread writes: the outputs (i, column) to (i, column + 7) whose bit in `wanted` is set. In
// few registers, since all bodies of the kernel start from it.
struct Outputs {
  uint32_t batch, i, column, wanted;
};

// Apart, so that the bodies of the kernel do without its registers.
__device__ __noinline__ uint64_t special_sum(const Combine& args, int64_t batch, int64_t i,
                                             int64_t j) {
  return special_output(args, batch, i, j);
}

template <int N>
__device__ __forceinline__ void write_outputs(const Combine& args, int64_t np, int planes,
                                              Outputs outputs) {
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  // Unknown from here on: what follows from them is computed in each body, not kept for all of
  // them.
  asm volatile(""
               : "+r"(outputs.batch), "+r"(outputs.i), "+r"(outputs.column), "+r"(outputs.wanted));
  const int64_t batch = outputs.batch, i = outputs.i, column = outputs.column;
  const uint32_t wanted = outputs.wanted;
  uint2 v[N];
  const uint8_t* source =
      static_cast<const uint8_t*>(args.v) + (batch * planes * m + i) * np + column;
#pragma unroll
  for (int z = 0; z < N; ++z) {
    v[z] = __ldcs(reinterpret_cast<const uint2*>(source));
    source += m * np;
  }

  const int32_t scale_a = args.scale_a[batch * m + i];
  const int32_t* const scales = args.scale_b + batch * n + column;
  unsigned long long* const target =
      reinterpret_cast<unsigned long long*>(args.c) + (batch * m + i) * n + column;
  const bool vectors = wanted == (1u << kColumns) - 1 && n % 2 == 0;
  int32_t smallest = scale_a;
#pragma unroll
  for (int pair = 0; pair < kColumns; pair += 2) {
    int32_t scale_b[2];
    if (vectors) {
      const int2 of_pair = *reinterpret_cast<const int2*>(scales + pair);
      scale_b[0] = of_pair.x, scale_b[1] = of_pair.y;
    } else {
#pragma unroll
      for (int e = 0; e < 2; ++e) scale_b[e] = column + pair + e < n ? scales[pair + e] : 0;
    }
    smallest = min(smallest, min(scale_b[0], scale_b[1]));
    unsigned long long c[2];
    uint32_t pairs[(N + 1) / 2];
    pair_bytes(v, pair, pairs);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      uint32_t y[Crt<N>::kGroups];
      partial_crt<N>(pairs, e == 1, y);
      // In unsigned arithmetic: sentinels, whose output is replaced below, may overflow.
      const int scale = static_cast<int>(static_cast<uint32_t>(scale_a) + scale_b[e]);
      c[e] = round_to_float64(reconstruct<N>(y), scale);
    }
    if (vectors) {
      __stcs(reinterpret_cast<ulonglong2*>(target + pair), make_ulonglong2(c[0], c[1]));
    } else {
      if (wanted >> pair & 1) __stcs(target + pair, c[0]);
      if (wanted >> pair & 2) __stcs(target + pair + 1, c[1]);
    }
  }
  if (!is_sentinel(smallest)) return;
#pragma unroll 1
  for (int e = 0; e < kColumns; ++e) {
    if ((wanted >> e & 1) == 0 || !is_sentinel(min(scale_a, scales[e]))) continue;
    const bool nan = scale_a == kScaleNaN || scales[e] == kScaleNaN;
    target[e] = nan ? kNaNBits : special_sum(args, batch, i, column + e);
  }
}

// The number of moduli is the same for all threads: one of the bodies runs.
template <int... kOffsets>
__device__ __forceinline__ void write_counted(int count, const Combine& args, int64_t np,
                                              int planes, const Outputs& outputs,
                                              std::integer_sequence<int, kOffsets...>) {
  (void)((count == kMinModuli + kOffsets &&
          (write_outputs<kMinModuli + kOffsets>(args, np, planes, outputs), true)) ||
         ...);
}

template <int kMost>
__global__ void __launch_bounds__(kThreads, kMost <= 15 ? 3 : 2)
    ladder_combine_kernel(const __grid_constant__ LadderCombine args, const Grid grid, int planes) {
  const int64_t m = args.product.a_layout.rows, n = args.product.b_layout.rows;
  if (args.seldom && args.flagged.none(args.product.a_layout.batch)) return;
  for (uint32_t block = blockIdx.x; block < grid.blocks; block += gridDim.x) {
    const uint32_t row_block = block / grid.column_blocks;
    const uint32_t column_block = block - row_block * grid.column_blocks;
    const uint32_t row =
        row_block * (kThreads >> grid.log2_lanes) + (threadIdx.x >> grid.log2_lanes);
    const uint32_t lane = threadIdx.x & ((1u << grid.log2_lanes) - 1);
    const int64_t column = ((int64_t{column_block} << grid.log2_lanes) + lane) * kColumns;
    if (row >= args.product.a_layout.batch * m || column >= n) continue;
    const uint32_t batch = row / static_cast<uint32_t>(m);
    const uint32_t i = row - batch * static_cast<uint32_t>(m);

    const uint32_t set = args.flagged.set(batch, i / uint32_t{kTile}, column / kTile);
    const int count = *args.count;
    if ((set & args.flagged.wanted) == 0) continue;
    uint32_t wanted = (1u << kColumns) - 1;
    if (column + kColumns > n) wanted >>= column + kColumns - n;
    if ((set & ~args.flagged.wanted) != 0) {
      const uint2 rungs =
          *reinterpret_cast<const uint2*>(args.rung + int64_t{row} * grid.np + column);
#pragma unroll
      for (int e = 0; e < kColumns; ++e) {
        const uint32_t rung = (e < 4 ? rungs.x : rungs.y) >> (8 * (e % 4)) & 31;
        wanted &= ~((~args.flagged.wanted >> rung & 1) << e);
      }
      if (wanted == 0) continue;
    }
    const Outputs outputs = {batch, i, static_cast<uint32_t>(column), wanted};
    write_counted(count, args.product, grid.np, planes, outputs,
                  std::make_integer_sequence<int, kMost - kMinModuli + 1>());
  }
}

}  // namespace

Status launch_ladder_combine(const LadderCombine& combine, int planes, const Device& device,
                             cudaStream_t stream) {
  const int64_t m = combine.product.a_layout.rows, n = combine.product.b_layout.rows;
  Grid grid;
  grid.np = padded(n);
  const int64_t lanes = (n + kColumns - 1) / kColumns;
  grid.log2_lanes = 0;
  while ((1 << grid.log2_lanes) < lanes && (1 << grid.log2_lanes) < kThreads) ++grid.log2_lanes;
  const int64_t width = int64_t{kColumns} << grid.log2_lanes;
  grid.column_blocks = static_cast<uint32_t>((n + width - 1) / width);
  const int64_t rows = combine.product.a_layout.batch * m, height = kThreads >> grid.log2_lanes;
  const int64_t blocks = (rows + height - 1) / height * grid.column_blocks;
  if (blocks > INT32_MAX) return Status("ladder_combine: more than 2^31 blocks of outputs");
  grid.blocks = static_cast<uint32_t>(blocks);
  const int64_t ctas =
      combine.seldom ? std::min(blocks, int64_t{4} * device.multiprocessors) : blocks;

  const auto kernel = planes <= 15 ? ladder_combine_kernel<15> : ladder_combine_kernel<kMaxModuli>;
  kernel<<<static_cast<unsigned>(ctas), kThreads, 0, stream>>>(combine, grid, planes);
  return launch_status("ladder_combine_kernel");
}

}  // namespace ozaki
