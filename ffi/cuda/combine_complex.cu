#include <utility>

#include "combine_complex.h"
#include "combine_outputs.cuh"
#include "common/complex.h"
#include "common/crt.h"
#include "common/scale.h"
#include "launch.h"
#include "launch_bounds.h"
#include "output_grid.cuh"
#include "special_outputs.cuh"

namespace ozaki {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 4;  // columns of a thread: a 4-byte load a modulus and root

// What a modulus adds to the y_g of either part is at most twice its product with the multiplier.
static_assert(2 * kMaxComplexModuli < kQuotientLimit);

// The partial sums of both parts of an output. v+ and v- of a modulus are the bytes of the lower or
// the upper half of a word.
template <int N>
__device__ __forceinline__ void partial_sums(const uint32_t (&pairs)[N], bool upper,
                                             uint32_t (&re)[Crt<N>::kGroups],
                                             uint32_t (&im)[Crt<N>::kGroups]) {
  constexpr auto moduli = kComplexModuli;
  constexpr auto units = kImaginaryUnits;
  constexpr Crt<N> crt = kComplexCrt<N>;
  const uint32_t minus_plus = 0x01ffu << (upper ? 16 : 0);  // as signed bytes: v- less v+
#pragma unroll
  for (int g = 0; g < Crt<N>::kGroups; ++g) {
    const int first = 3 * g, end = min(first + 3, N);
    uint32_t quotients = 0;
    re[g] = im[g] = 0;
#pragma unroll
    for (int z = first; z < end; ++z) {
      const uint32_t multiplier = crt.multiplier[z];
      re[g] = dot2(multiplier << 16 | multiplier, pairs[z], upper, re[g]);
      const ImaginarySummand summand(moduli[z], units[z], multiplier);
      const uint32_t x = dot4_signed(minus_plus, pairs[z], moduli[z].float_zero + moduli[z].p);
      im[g] += summand.start + x * summand.weight;
      quotients += summand.quotient(x);
    }
    im[g] -= quotients * (moduli[first].p * crt.multiplier[first]);
  }
}

// Writes a thread's outputs again, one by one, where some are no ordinary numbers: those of rows
// and columns with non-finite elements, and those that round_to_normal leaves.
template <int N>
__device__ __noinline__ void write_rare_outputs(const Combine& args, int64_t np, int64_t batch,
                                                int64_t i, int64_t column) {
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  const int32_t scale_a = args.scale_a[batch * m + i];
  for (int64_t j = column; j < min(column + kColumns, n); ++j) {
    const int32_t scale_b = args.scale_b[batch * n + j];
    ulonglong2 bits = {kNaNBits, kNaNBits};
    if (!is_sentinel(scale_a) && !is_sentinel(scale_b)) {
      uint32_t pairs[N], re[Crt<N>::kGroups], im[Crt<N>::kGroups];
      const uint8_t* v = static_cast<const uint8_t*>(args.v) + (batch * 2 * N * m + i) * np + j;
      for (int z = 0; z < N; ++z) pairs[z] = v[z * m * np] | v[(N + z) * m * np] << 8;
      partial_sums<N>(pairs, false, re, im);
      const int scale = scale_a + scale_b;
      bits = {round_to_float64(reconstruct<N, ModulusSet::kComplex>(re), scale),
              round_to_float64(reconstruct<N, ModulusSet::kComplex>(im), scale)};
    } else if (scale_a != kScaleNaN && scale_b != kScaleNaN) {
      bits = complex_special_output(args, batch, i, j);
    }
    reinterpret_cast<ulonglong2*>(args.c)[(batch * m + i) * n + j] = bits;
  }
}

// CTAs of a multiprocessor: more moduli take more registers.
constexpr int ctas_for(int moduli) { return moduli <= 15 ? 6 : moduli <= 19 ? 5 : 4; }

template <int N>
__global__ void __launch_bounds__(kThreads, resident(kThreads, ctas_for(N)))
    complex_combine_kernel(const __grid_constant__ Combine args, const OutputGrid grid) {
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  const auto [row, first_column] = grid.place<kThreads, kColumns>(blockIdx.x);
  const int64_t column = first_column;
  if (row >= args.a_layout.batch * m || column >= n) return;
  const uint32_t batch = row / static_cast<uint32_t>(m), i = row - batch * static_cast<uint32_t>(m);

  uint32_t pairs[2][N];  // of two columns each
  const uint8_t* const source =
      static_cast<const uint8_t*>(args.v) + (int64_t{batch} * 2 * N * m + i) * grid.np + column;
  const auto load = [&](int plane) {
    return __ldcs(reinterpret_cast<const uint32_t*>(source + plane * (m * grid.np)));
  };
#pragma unroll
  for (int z = 0; z < N; ++z) {
    const uint32_t plus = load(z), minus = load(N + z);
    pairs[0][z] = __byte_perm(plus, minus, 0x5140);
    pairs[1][z] = __byte_perm(plus, minus, 0x7362);
  }

  const int32_t scale_a = args.scale_a[row];
  const int32_t* scales = args.scale_b + batch * n + column;
  bool ordinary = !is_sentinel(scale_a);
  ulonglong2* target = reinterpret_cast<ulonglong2*>(args.c) + row * n + column;
#pragma unroll
  for (int e = 0; e < kColumns; ++e) {
    if (column + e >= n) break;
    uint32_t re[Crt<N>::kGroups], im[Crt<N>::kGroups];
    partial_sums<N>(pairs[e / 2], e % 2 != 0, re, im);
    const int32_t scale_b = scales[e];
    const Limbs<Crt<N>::kLimbs> x[2] = {reconstruct<N, ModulusSet::kComplex>(re),
                                        reconstruct<N, ModulusSet::kComplex>(im)};
    const int scale[2] = {sum_of_scales(scale_a, scale_b), sum_of_scales(scale_a, scale_b)};
    uint64_t c[2];
    ordinary &= !is_sentinel(scale_b);
    ordinary &= round_to_normal(x, scale, c);
    __stcs(target + e, make_ulonglong2(c[0], c[1]));
  }
  if (!ordinary) write_rare_outputs<N>(args, grid.np, batch, i, column);
}

using Kernel = void (*)(Combine, OutputGrid);

template <int... kOffsets>
Kernel kernel_for(int moduli, std::integer_sequence<int, kOffsets...>) {
  static constexpr Kernel kKernels[] = {complex_combine_kernel<kMinModuli + kOffsets>...};
  return kKernels[moduli - kMinModuli];
}

}  // namespace

Status launch_combine_complex(const Combine& combine, int moduli, const Device& device,
                              cudaStream_t stream) {
  const OutputGrid grid(combine.a_layout, combine.b_layout, kThreads, kColumns);
  constexpr int kCounts = kMaxComplexModuli - kMinModuli + 1;
  const Kernel kernel = kernel_for(moduli, std::make_integer_sequence<int, kCounts>());
  return launch("complex_combine_kernel", kernel, {grid.blocks, kThreads}, device, stream, combine,
                grid);
}

}  // namespace ozaki
