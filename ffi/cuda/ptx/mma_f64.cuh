// Warp-level float64 matrix products: d[8,8] = a[8,4] b[4,8] + c (sm_80 and later).
#pragma once

namespace ozaki::ptx {

// Lane l holds a[l/4, l%4], b[l%4, l/4] and row l/4, columns 2(l%4) and 2(l%4) + 1 of c and d.
__device__ __forceinline__ void mma_m8n8k4(double (&d)[2], double a, double b, double c0,
                                           double c1) {
  asm volatile(
      "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%4, %5};"
      : "=d"(d[0]), "=d"(d[1])
      : "d"(a), "d"(b), "d"(c0), "d"(c1));
}

#ifdef CHAIN_K8
__device__ __forceinline__ void mma_m16n8k8(double (&d)[2], double (&e)[2], const double (&a)[4], const double (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=d"(d[0]), "=d"(d[1]), "=d"(e[0]), "=d"(e[1])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]), "d"(0.0), "d"(0.0), "d"(0.0), "d"(0.0));
}
#endif

}  // namespace ozaki::ptx
