// Warp-level float64 matrix products: d[16,8] = a[16,8] b[8,8]. Every output is the sum of its products
// in the order of k, from zero, by FMAs that round to nearest.
#pragma once

namespace ozaki::ptx {

// By FMAs, as the definition says.
__device__ __forceinline__ void fma_m16n8k8(double (&upper)[2], double (&lower)[2],
                                            const double (&a)[4], const double (&b)[2]) {
  const int lane = threadIdx.x % 32;
  upper[0] = upper[1] = lower[0] = lower[1] = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll 1
    for (int k = 0; k < 4; ++k) {
      const int of_row = lane / 4 * 4 + k, of_column = lane % 4 * 8 + k;
      const double a_upper = __shfl_sync(~0u, a[2 * h], of_row);
      const double a_lower = __shfl_sync(~0u, a[2 * h + 1], of_row);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const double b_column = __shfl_sync(~0u, b[h], of_column + 4 * j);
        upper[j] = __fma_rn(a_upper, b_column, upper[j]);
        lower[j] = __fma_rn(a_lower, b_column, lower[j]);
      }
    }
  }
}

// Lane l holds a[l/4 + 8 i, l%4 + 4 h] as a[2 h + i], b[l%4 + 4 h, l/4] as b[h], and columns 2(l%4)
// and 2(l%4) + 1 of d's row l/4 (upper) and l/4 + 8 (lower). PTX leaves the order of a tensor core's
// sum open: it is used where it was seen to be this one.
__device__ __forceinline__ void mma_m16n8k8(double (&upper)[2], double (&lower)[2],
                                            const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ == 900
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=d"(upper[0]), "=d"(upper[1]), "=d"(lower[0]), "=d"(lower[1])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]), "d"(0.0));
#else
  fma_m16n8k8(upper, lower, a, b);
#endif
}

}  // namespace ozaki::ptx
