// Asynchronous 8-byte copies from global to shared memory: operands are aligned to no more.
#pragma once

#include <cstdint>

namespace ozaki::ptx {

__device__ __forceinline__ void cp_async_8(uint32_t destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(destination), "l"(source)
               : "memory");
}

// Writes 8 bytes at `destination`: those at `source`, or zeros when not `valid`.
__device__ __forceinline__ void cp_async_8(uint32_t destination, const void* source, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(destination), "l"(source),
               "r"(valid ? 8 : 0)
               : "memory");
}

}  // namespace ozaki::ptx
