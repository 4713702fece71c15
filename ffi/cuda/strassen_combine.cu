#include <utility>

#include "common/classify.h"
#include "common/crt.h"
#include "common/scale.h"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "strassen.h"

namespace ozaki {
namespace {

constexpr int kWarps = 2, kThreads = 32 * kWarps;
constexpr int kMinBlocks = 8;
constexpr int kColumns = 4;            // of a lane: one word a product and modulus
constexpr int kWidth = 32 * kColumns;  // of a warp, which takes this part of a row of all quarters
constexpr int kQuarters = 4;           // of C, 2 * (lower) + (right)

// A quarter of C is at most five times p: so are its y_g, and S of theirs.
static_assert(5 * kMaxModuli < kQuotientLimit, "the quotient would not hold S");

struct Grid {
  int64_t half_m, half_n, np;
  uint32_t column_blocks;  // warps a row
};

// The output (i, j) where it is no ordinary number: that of a row or a column with non-finite
// elements, or one that round_to_normal leaves.
template <int N>
__device__ __noinline__ uint64_t rare_output(const Combine& args, int64_t batch, int64_t i,
                                             int64_t j, const uint32_t (&y)[Crt<N>::kGroups]) {
  const int32_t scale_a = args.scale_a[batch * args.a_layout.rows + i];
  const int32_t scale_b = args.scale_b[batch * args.b_layout.rows + j];
  if (!is_sentinel(scale_a) && !is_sentinel(scale_b)) {
    return round_to_float64(reconstruct<N>(y), scale_a + scale_b);
  }
  if (scale_a == kScaleNaN || scale_b == kScaleNaN) return kNaNBits;
  const uint64_t* a = reinterpret_cast<const uint64_t*>(args.a) + args.a_layout.offset(batch, i, 0);
  const uint64_t* b = reinterpret_cast<const uint64_t*>(args.b) + args.b_layout.offset(batch, j, 0);
  SpecialSum sum;
  for (int64_t h = 0; h < args.a_layout.k; ++h) {
    sum.add(a[h * args.a_layout.stride_k], b[h * args.b_layout.stride_k]);
  }
  return sum.bits();
}

// Adds the modulus p to the partial sums y_g of the four quarters. The words hold its residues of
// kColumns columns, one word a product. Columns e and e + 2 are added up in the halves of a word,
// and the whole word is multiplied for column e: take_off_upper_halves corrects that at the end.
__device__ __forceinline__ void add_modulus(const uint32_t (&word)[kStrassenProducts], uint32_t p,
                                            uint32_t multiplier,
                                            uint32_t (&y)[kQuarters][kColumns]) {
  const uint32_t both = p << 16 | p;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    uint32_t q[kStrassenProducts];
#pragma unroll
    for (int j = 0; j < kStrassenProducts; ++j) {
      q[j] = __byte_perm(word[j], 0, e == 0 ? 0x4240 : 0x4341);
    }
    const uint32_t u = q[0] - q[2] + 2 * both;
    const uint32_t c[kQuarters] = {q[0] - q[1] + both, u + q[6] - q[4], u + q[5] - q[3],
                                   u + q[5] + q[6]};
#pragma unroll
    for (int i = 0; i < kQuarters; ++i) {
      y[i][e] += c[i] * multiplier;
      y[i][e + 2] += (c[i] >> 16) * multiplier;
    }
  }
}

__device__ __forceinline__ void take_off_upper_halves(uint32_t (&y)[kQuarters][kColumns]) {
#pragma unroll
  for (int q = 0; q < kQuarters; ++q) {
#pragma unroll
    for (int e = 0; e < 2; ++e) y[q][e] -= y[q][e + 2] << 16;
  }
}

template <typename Step, int... kIndices>
__device__ __forceinline__ void for_each_group(Step step, std::integer_sequence<int, kIndices...>) {
  (step(std::integral_constant<int, kIndices>()), ...);
}

// What a warp keeps of a group of moduli: the words of the products, then the sums y_g they become.
union GroupBuffer {
  uint32_t word[3][kStrassenProducts][32];
  uint32_t y[kQuarters][kWidth];
};

template <int N>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    strassen_combine_kernel(const __grid_constant__ Combine args, const Grid grid) {
  constexpr int kGroups = Crt<N>::kGroups;
  constexpr Crt<N> crt = kCrt<N>;
  constexpr auto moduli = kModuli;
  __shared__ __align__(16) GroupBuffer buffers[kWarps][kGroups];
  GroupBuffer(&group)[kGroups] = buffers[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;

  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  const uint32_t row = warp / grid.column_blocks;  // of a quarter, counted through the batch
  const int64_t first_column = int64_t{warp - row * grid.column_blocks} * kWidth;
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  const uint32_t batch = row / static_cast<uint32_t>(grid.half_m);
  const uint32_t upper_row = row - batch * static_cast<uint32_t>(grid.half_m);
  if (batch >= args.a_layout.batch) return;

  // All residues are requested at once. Eight lanes copy the 128 bytes of a product and modulus,
  // lanes 8 i to 8 i + 7 those of the products i and i + 4.
  const int64_t plane = grid.half_m * grid.np;
  const int64_t column = first_column + lane % 8 * 16;
  const uint8_t* const v = static_cast<const uint8_t*>(args.v) +
                           (int64_t{batch} * kStrassenProducts + lane / 8) * N * plane +
                           upper_row * grid.np + column;
#pragma unroll
  for (int z = 0; z < N; ++z) {
#pragma unroll
    for (int j = 0; j < kStrassenProducts; j += 4) {
      if (const int product = j + lane / 8; product < kStrassenProducts) {
        ptx::cp_async_16(ptx::shared_address(&group[z / 3].word[z % 3][product][lane % 8 * 4]),
                         v + (j * N + z) * plane, column < grid.np);
      }
    }
    if (z % 3 == 2 || z == N - 1) ptx::cp_async_commit();
  }

  // A lane turns four columns of a group into partial sums of the four quarters.
  for_each_group(
      [&](auto index) {
        constexpr int g = decltype(index)::value;
        ptx::cp_async_wait<kGroups - 1 - g>();
        __syncwarp();
        uint32_t y[kQuarters][kColumns] = {};
#pragma unroll
        for (int z = 3 * g; z < min(3 * g + 3, N); ++z) {
          uint32_t word[kStrassenProducts];
#pragma unroll
          for (int j = 0; j < kStrassenProducts; ++j) word[j] = group[g].word[z % 3][j][lane];
          add_modulus(word, moduli[z].p, crt.multiplier[z], y);
        }
        take_off_upper_halves(y);
        __syncwarp();
#pragma unroll
        for (int q = 0; q < kQuarters; ++q) {
          *reinterpret_cast<uint4*>(&group[g].y[q][lane * kColumns]) =
              make_uint4(y[q][0], y[q][1], y[q][2], y[q][3]);
        }
      },
      std::make_integer_sequence<int, kGroups>());

  // Its outputs, the four columns of a quarter at a time.
#pragma unroll 1
  for (int q = 0; q < kQuarters; ++q) {
    const bool lower = q / 2 != 0, right = q % 2 != 0;
    const int64_t i = upper_row + (lower ? grid.half_m : 0);
    const int64_t j = first_column + lane * kColumns + (right ? grid.half_n : 0);
    const int count = static_cast<int>(
        clamp<int64_t>((right ? n : grid.half_n) - j, 0, kColumns));  // 0 beyond the edge
    if (i >= m || count == 0) continue;

    const int32_t scale_a = args.scale_a[batch * m + i];
    const int32_t* const scales = args.scale_b + batch * n + j;
    int32_t scale_b[kColumns];
#pragma unroll
    for (int e = 0; e < kColumns; ++e) scale_b[e] = e < count ? scales[e] : 0;

    uint4 y_of[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      y_of[g] = *reinterpret_cast<const uint4*>(&group[g].y[q][lane * kColumns]);
    }
    const auto y_of_column = [&](int e, uint32_t (&y)[kGroups]) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        y[g] = e == 0 ? y_of[g].x : e == 1 ? y_of[g].y : e == 2 ? y_of[g].z : y_of[g].w;
      }
    };
    uint64_t c[kColumns];
    bool ordinary = !is_sentinel(scale_a);
#pragma unroll
    for (int e = 0; e < kColumns; ++e) {
      uint32_t y[kGroups];
      y_of_column(e, y);
      // In unsigned arithmetic: sentinels, whose output is replaced below, may overflow.
      const int scale = static_cast<int>(static_cast<uint32_t>(scale_a) + scale_b[e]);
      ordinary &= round_to_normal(reconstruct<N>(y), scale, c[e]) && !is_sentinel(scale_b[e]);
    }
    if (!ordinary) {
#pragma unroll
      for (int e = 0; e < kColumns; ++e) {
        uint32_t y[kGroups];
        y_of_column(e, y);
        if (e < count) c[e] = rare_output<N>(args, batch, i, j + e, y);
      }
    }

    unsigned long long* const target =
        reinterpret_cast<unsigned long long*>(args.c) + (batch * m + i) * n + j;
    if (count == kColumns && reinterpret_cast<uintptr_t>(target) % 16 == 0) {
      __stcs(reinterpret_cast<ulonglong2*>(target), make_ulonglong2(c[0], c[1]));
      __stcs(reinterpret_cast<ulonglong2*>(target) + 1, make_ulonglong2(c[2], c[3]));
    } else {
#pragma unroll
      for (int e = 0; e < kColumns; ++e) {
        if (e < count) __stcs(target + e, c[e]);
      }
    }
  }
}

using CombineKernel = void (*)(Combine, Grid);

template <int... kOffsets>
CombineKernel kernel_for(int moduli, std::integer_sequence<int, kOffsets...>) {
  static constexpr CombineKernel kKernels[] = {strassen_combine_kernel<kMinModuli + kOffsets>...};
  return kKernels[moduli - kMinModuli];
}

}  // namespace

Status launch_strassen_combine(const Combine& combine, int moduli, const Device&,
                               cudaStream_t stream) {
  OZAKI_RETURN_IF_ERROR(check_strassen("strassen_combine", combine.a_layout, moduli));
  OZAKI_RETURN_IF_ERROR(check_strassen("strassen_combine", combine.b_layout, moduli));
  if (combine.kind != MmaOutput::kResidues) {
    return Status("strassen_combine: needs the residues of the products, not their partial CRT");
  }
  Grid grid;
  grid.half_m = strassen_half(combine.a_layout.rows);
  grid.half_n = strassen_half(combine.b_layout.rows);
  grid.np = padded(grid.half_n);
  grid.column_blocks = static_cast<uint32_t>((grid.half_n + kWidth - 1) / kWidth);
  const int64_t warps = combine.a_layout.batch * grid.half_m * grid.column_blocks;
  if (warps > INT32_MAX) return Status("strassen_combine: more than 2^31 warps for the result");
  const unsigned blocks = static_cast<unsigned>((warps + kWarps - 1) / kWarps);

  const auto kernel =
      kernel_for(moduli, std::make_integer_sequence<int, kMaxModuli - kMinModuli + 1>());
  kernel<<<blocks, kThreads, 0, stream>>>(combine, grid);
  return launch_status("strassen_combine_kernel");
}

}  // namespace ozaki
