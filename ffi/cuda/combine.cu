#include <utility>

#include "combine.h"
#include "combine_outputs.cuh"
#include "launch.h"
#include "launch_bounds.h"
#include "output_grid.cuh"
#include "ptx/dependent_launch.cuh"

namespace ozaki {
namespace {

constexpr int kThreads = 128;

// Partial sums of the CRT: four columns, one 16-byte load a group of moduli.
template <int N>
struct PartialSums {
  static constexpr int kModuli = N, kPlanes = Crt<N>::kGroups, kColumns = 4;
  using Element = uint32_t;
  using Vector = uint4;

  static __device__ __forceinline__ void partial_sums(const Vector (&v)[kPlanes], int e,
                                                      uint32_t (&y)[2][kPlanes]) {
#pragma unroll
    for (int g = 0; g < kPlanes; ++g) {
      y[0][g] = e == 0 ? v[g].x : v[g].z;
      y[1][g] = e == 0 ? v[g].y : v[g].w;
    }
  }

  static __device__ __forceinline__ void partial_sums(const Element* v, int64_t plane,
                                                      uint32_t (&y)[kPlanes]) {
#pragma unroll
    for (int g = 0; g < kPlanes; ++g) y[g] = v[g * plane];
  }
};

// Writes a thread's outputs again, one by one, where some are no ordinary numbers.
template <typename V>
__device__ __noinline__ void write_rare_outputs(const Combine& args, int64_t np, int64_t batch,
                                                int64_t i, int64_t column) {
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  for (int64_t j = column; j < min(column + V::kColumns, n); ++j) {
    reinterpret_cast<uint64_t*>(args.c)[(batch * m + i) * n + j] =
        rare_output<V>(args, np, batch, i, j);
  }
}

template <typename V>
__global__ void __launch_bounds__(kThreads, resident(kThreads, V::kModuli <= 15 ? 6 : 5))
    combine_kernel(const __grid_constant__ Combine args, const OutputGrid grid) {
  constexpr int kPlanes = V::kPlanes, kColumns = V::kColumns;
  using Vector = typename V::Vector;
  ptx::wait_for_previous();
  ptx::launch_dependents();
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  const auto [row, first_column] = grid.place<kThreads, kColumns>(blockIdx.x);
  const int64_t column = first_column;
  if (row >= args.a_layout.batch * m || column >= n) return;
  const uint32_t batch = row / static_cast<uint32_t>(m), i = row - batch * static_cast<uint32_t>(m);

  Vector v[kPlanes];
  const auto* source = static_cast<const typename V::Element*>(args.v) +
                       ((int64_t{batch} * kPlanes * m) + i) * grid.np + column;
#pragma unroll
  for (int z = 0; z < kPlanes; ++z) {
    v[z] = __ldcs(reinterpret_cast<const Vector*>(source));
    source += m * grid.np;
  }

  const int32_t scale_a = args.scale_a[row];
  const bool inside = column + kColumns <= n;
  int32_t scale_b[kColumns];
  load_scales(args.scale_b + batch * n, column, n, scale_b);

  unsigned long long* target = reinterpret_cast<unsigned long long*>(args.c) + row * n + column;
  const bool ordinary =
      for_each_pair<V>(v, scale_a, scale_b, [&](int pair, const uint64_t (&c)[2]) {
        if (inside && n % 2 == 0) {
          __stcs(reinterpret_cast<ulonglong2*>(target + pair), make_ulonglong2(c[0], c[1]));
        } else {
          if (column + pair < n) __stcs(target + pair, c[0]);
          if (column + pair + 1 < n) __stcs(target + pair + 1, c[1]);
        }
      });
  if (!ordinary) write_rare_outputs<V>(args, grid.np, batch, i, column);
}

struct CombineKernel {
  void (*run)(Combine, OutputGrid);
  int columns;  // of a thread
};

template <template <int> typename V, int... kOffsets>
CombineKernel kernel_for(int moduli, std::integer_sequence<int, kOffsets...>) {
  static constexpr CombineKernel kKernels[] = {
      {combine_kernel<V<kMinModuli + kOffsets>>, V<kMinModuli + kOffsets>::kColumns}...};
  return kKernels[moduli - kMinModuli];
}

}  // namespace

Status launch_combine(const Combine& combine, int moduli, const Device& device,
                      cudaStream_t stream) {
  constexpr auto kCounts = std::make_integer_sequence<int, kMaxModuli - kMinModuli + 1>();
  const CombineKernel kernel = combine.kind == MmaOutput::kPartialCrt
                                   ? kernel_for<PartialSums>(moduli, kCounts)
                                   : kernel_for<Residues>(moduli, kCounts);
  const OutputGrid grid(combine.a_layout, combine.b_layout, kThreads, kernel.columns);
  return launch("combine_kernel", kernel.run, {grid.blocks, kThreads, 0, 1, true}, device, stream,
                combine, grid);
}

}  // namespace ozaki
