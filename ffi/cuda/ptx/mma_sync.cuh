// Warp-level matrix product (sm_80 and later): d[16,8] += a[16,32] b[32,8], unsigned bytes.
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

}  // namespace ozaki::ptx
