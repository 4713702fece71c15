#include <utility>

#include "combine_complex.h"
#include "combine_outputs.cuh"
#include "common/complex.h"
#include "common/crt.h"
#include "common/scale.h"
#include "for_each_index.cuh"
#include "launch.h"
#include "output_grid.cuh"
#include "special_outputs.cuh"

namespace ozaki {
namespace {

constexpr int kThreads = 256,
              kColumns = 4;  // columns of a thread: a 4-byte load a modulus and root

// The partial sums of both parts of the output whose v+ and v- are byte e of the words.
template <int N>
__device__ __forceinline__ void partial_sums(const uint32_t (&plus)[N], const uint32_t (&minus)[N],
                                             int e, uint32_t (&re)[Crt<N>::kGroups],
                                             uint32_t (&im)[Crt<N>::kGroups]) {
#pragma unroll
  for (int g = 0; g < Crt<N>::kGroups; ++g) re[g] = im[g] = 0;
  for_each_index(
      [&](auto index) {
        constexpr int z = decltype(index)::value;
        constexpr Modulus modulus = kComplexModuli[z];
        constexpr ImaginaryUnit unit = kImaginaryUnits[z];
        constexpr uint32_t multiplier = kComplexCrt<N>.multiplier[z];
        // v+ and v- in the two lower bytes; the upper ones count for nothing.
        const uint32_t pair = __byte_perm(plus[z], minus[z], 0x40 + e * 0x11);
        re[z / 3] = dot2(multiplier << 16 | multiplier, pair, false, re[z / 3]);
        im[z / 3] += imaginary_residue_float(pair, modulus, unit) * multiplier;
        im[z / 3] -= modulus.upper_bytes * multiplier;
        return true;
      },
      std::make_integer_sequence<int, N>());
}

// Writes a thread's outputs again, one by one, where some are no ordinary numbers: those of rows
// and columns with non-finite elements, and those that round_to_normal leaves.
template <int N>
__device__ __noinline__ void write_rare_outputs(const ComplexCombine& args, int64_t np,
                                                int64_t batch, int64_t i, int64_t column) {
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  const int32_t scale_a = args.scale_a[batch * m + i];
  for (int64_t j = column; j < min(column + kColumns, n); ++j) {
    const int32_t scale_b = args.scale_b[batch * n + j];
    ulonglong2 bits = {kNaNBits, kNaNBits};
    if (!is_sentinel(scale_a) && !is_sentinel(scale_b)) {
      uint32_t plus[N], minus[N], re[Crt<N>::kGroups], im[Crt<N>::kGroups];
      const uint8_t* v = args.v + (batch * 2 * N * m + i) * np + j;
      for (int z = 0; z < N; ++z) plus[z] = v[z * m * np], minus[z] = v[(N + z) * m * np];
      partial_sums<N>(plus, minus, 0, re, im);
      const int scale = scale_a + scale_b;
      bits = {round_to_float64(reconstruct<N, ModulusSet::kComplex>(re), scale),
              round_to_float64(reconstruct<N, ModulusSet::kComplex>(im), scale)};
    } else if (scale_a != kScaleNaN && scale_b != kScaleNaN) {
      bits = complex_special_output(args, batch, i, j);
    }
    reinterpret_cast<ulonglong2*>(args.c)[(batch * m + i) * n + j] = bits;
  }
}

template <int N>
__global__ void __launch_bounds__(kThreads, 3)
    complex_combine_kernel(const __grid_constant__ ComplexCombine args, const OutputGrid grid) {
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  const auto [row, first_column] = grid.place<kThreads, kColumns>(blockIdx.x);
  const int64_t column = first_column;
  if (row >= args.a_layout.batch * m || column >= n) return;
  const uint32_t batch = row / static_cast<uint32_t>(m), i = row - batch * static_cast<uint32_t>(m);

  uint32_t plus[N], minus[N];
  const int64_t plane = m * grid.np;
  const uint8_t* source = args.v + (int64_t{batch} * 2 * N * m + i) * grid.np + column;
#pragma unroll
  for (int z = 0; z < N; ++z)
    plus[z] = __ldcs(reinterpret_cast<const uint32_t*>(source + z * plane));
  source += N * plane;
#pragma unroll
  for (int z = 0; z < N; ++z)
    minus[z] = __ldcs(reinterpret_cast<const uint32_t*>(source + z * plane));

  const int32_t scale_a = args.scale_a[row];
  const int32_t* scales = args.scale_b + batch * n + column;
  bool ordinary = !is_sentinel(scale_a);
  ulonglong2* target = reinterpret_cast<ulonglong2*>(args.c) + row * n + column;
#pragma unroll
  for (int e = 0; e < kColumns; ++e) {
    if (column + e >= n) break;
    uint32_t re[Crt<N>::kGroups], im[Crt<N>::kGroups];
    partial_sums<N>(plus, minus, e, re, im);
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

using Kernel = void (*)(ComplexCombine, OutputGrid);

template <int... kOffsets>
Kernel kernel_for(int moduli, std::integer_sequence<int, kOffsets...>) {
  static constexpr Kernel kKernels[] = {complex_combine_kernel<kMinModuli + kOffsets>...};
  return kKernels[moduli - kMinModuli];
}

}  // namespace

Status launch_combine_complex(const ComplexCombine& combine, int moduli, const Device& device,
                              cudaStream_t stream) {
  const OutputGrid grid(combine.a_layout, combine.b_layout, kThreads, kColumns);
  constexpr int kCounts = kMaxComplexModuli - kMinModuli + 1;
  const Kernel kernel = kernel_for(moduli, std::make_integer_sequence<int, kCounts>());
  return launch("complex_combine_kernel", kernel, {grid.blocks, kThreads}, device, stream, combine,
                grid);
}

}  // namespace ozaki
