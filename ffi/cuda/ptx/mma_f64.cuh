// Warp-level float64 matrix products: d[16,8] = a[16,8] b[8,8]. Every output is the sum of its products
// in the order of k, from zero, by FMAs that round to nearest.
#pragma once

namespace ozaki::ptx {

// Lane l holds a[l/4 + 8 i, l%4 + 4 h] as a[2 h + i], b[l%4 + 4 h, l/4] as b[h], and columns 2(l%4)
// and 2(l%4) + 1 of d's row l/4 (upper) and l/4 + 8 (lower).
__device__ __forceinline__ void mma_m16n8k8(double (&upper)[2], double (&lower)[2],
                                            const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=d"(upper[0]), "=d"(upper[1]), "=d"(lower[0]), "=d"(lower[1])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]), "d"(0.0));
#else
  const auto add = [](double (&d)[2], double x, double y) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(x), "d"(y));
  };
  upper[0] = upper[1] = lower[0] = lower[1] = 0;
  add(upper, a[0], b[0]);
  add(upper, a[2], b[1]);
  add(lower, a[1], b[0]);
  add(lower, a[3], b[1]);
#endif
}

}  // namespace ozaki::ptx
