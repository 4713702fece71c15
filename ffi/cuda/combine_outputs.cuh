// The outputs of a thread: consecutive columns of a row, from what the grouped product left of them.
#pragma once

#include <cstdint>

#include "combine.h"
#include "common/crt.h"
#include "common/scale.h"
#include "pair_bytes.cuh"
#include "special_outputs.cuh"

namespace ozaki {

// Residues of N moduli: a thread takes eight columns, one 8-byte load a modulus.
template <int N>
struct Residues {
  static constexpr int kModuli = N, kPlanes = N, kColumns = 8;
  using Element = uint8_t;
  using Vector = uint2;

  // y_g of the columns e and e + 1, e even.
  static __device__ __forceinline__ void partial_sums(const Vector (&v)[N], int e,
                                                      uint32_t (&y)[2][Crt<N>::kGroups]) {
    uint32_t pairs[(N + 1) / 2];
    pair_bytes(v, e, pairs);
    partial_crt<N>(pairs, false, y[0]);
    partial_crt<N>(pairs, true, y[1]);
  }

  // y_g of one column.
  static __device__ __forceinline__ void partial_sums(const Element* v, int64_t plane,
                                                      uint32_t (&y)[Crt<N>::kGroups]) {
    uint32_t pairs[(N + 1) / 2] = {};
#pragma unroll
    for (int z = 0; z < N; ++z) pairs[z / 2] |= uint32_t{v[z * plane]} << (8 * (z % 2));
    partial_crt<N>(pairs, false, y);
  }
};

// In unsigned arithmetic: sentinels, whose outputs are written apart, may overflow.
__device__ __forceinline__ int sum_of_scales(int32_t a, int32_t b) {
  return static_cast<int>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

// scales[column + e], 0 beyond n; column is a multiple of kColumns.
template <int kColumns>
__device__ __forceinline__ void load_scales(const int32_t* scales, int64_t column, int64_t n,
                                            int32_t (&scale)[kColumns]) {
  if (column + kColumns <= n && n % 4 == 0) {
#pragma unroll
    for (int e = 0; e < kColumns; e += 4) {
      *reinterpret_cast<int4*>(scale + e) = *reinterpret_cast<const int4*>(scales + column + e);
    }
  } else {
#pragma unroll
    for (int e = 0; e < kColumns; ++e) scale[e] = column + e < n ? scales[column + e] : 0;
  }
}

// store(pair, c) for the bits of the columns pair and pair + 1, pair = 0, 2, ... Whether all are
// right: otherwise rare_output says what the outputs are.
template <typename V, typename Store>
__device__ __forceinline__ bool for_each_pair(const typename V::Vector (&v)[V::kPlanes],
                                              int32_t scale_a,
                                              const int32_t (&scale_b)[V::kColumns], Store store) {
  constexpr int N = V::kModuli;
  int32_t smallest = scale_a;
#pragma unroll
  for (int e = 0; e < V::kColumns; ++e) smallest = min(smallest, scale_b[e]);
  bool ordinary = !is_sentinel(smallest);
#pragma unroll
  for (int pair = 0; pair < V::kColumns; pair += 2) {
    uint32_t y[2][Crt<N>::kGroups];
    V::partial_sums(v, pair, y);
    Limbs<Crt<N>::kLimbs> x[2];
    int scale[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      x[e] = reconstruct<N>(y[e]);
      scale[e] = sum_of_scales(scale_a, scale_b[pair + e]);
    }
    uint64_t c[2];
    ordinary &= round_to_normal(x, scale, c);
    store(pair, c);
  }
  return ordinary;
}

// The bits of an output that may be no ordinary number: one of a row or column with non-finite
// elements, or one that round_to_normal leaves. v has so many planes.
template <typename V>
__device__ __forceinline__ uint64_t rare_output(const Combine& args, int64_t np, int64_t batch,
                                                int64_t i, int64_t j, int planes = V::kPlanes) {
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  const int32_t scale_a = args.scale_a[batch * m + i], scale_b = args.scale_b[batch * n + j];
  if (!is_sentinel(scale_a) && !is_sentinel(scale_b)) {
    uint32_t y[Crt<V::kModuli>::kGroups];
    V::partial_sums(
        static_cast<const typename V::Element*>(args.v) + (batch * planes * m + i) * np + j, m * np,
        y);
    return round_to_float64(reconstruct<V::kModuli>(y), scale_a + scale_b);
  }
  const bool nan = scale_a == kScaleNaN || scale_b == kScaleNaN;
  return nan ? kNaNBits : special_output(args, batch, i, j);
}

}  // namespace ozaki
