// Loads four matrices of 8 rows x 16 bytes; lane l gives the address of row l%8 of matrix l/8 and
// receives bytes 4(l%4)..4(l%4)+3 of row l/4 of each.
#pragma once

#include <cstdint>

namespace ozaki::ptx {

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

}  // namespace ozaki::ptx
