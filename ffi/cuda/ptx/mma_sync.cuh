// Warp-level matrix products (sm_80 and later) of unsigned bytes, added to a [16,8] of 32 bits.
#pragma once

#include <cstdint>

namespace ozaki::ptx {

// Lane l holds rows l/4 (d[0], d[1]) and l/4 + 8 (d[2], d[3]), columns 2(l%4) and 2(l%4) + 1.
__device__ __forceinline__ void mma_m16n8k32(uint32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Lane l gives bytes 4(l%4)..4(l%4)+3 of rows l/4 and l/4 + 8 of a and of column l/4 of b.
__device__ __forceinline__ void mma_m16n8k16(uint32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b,
                                             const uint32_t (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.u8.s32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

}  // namespace ozaki::ptx
