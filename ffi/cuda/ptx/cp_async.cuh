// Asynchronous 16-byte copies from global to shared memory (sm_80 and later).
#pragma once

#include <cstdint>

namespace ozaki::ptx {

// Writes 16 bytes at `destination`: those at `source`, or zeros when not `valid`.
__device__ __forceinline__ void cp_async_16(uint32_t destination, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(valid ? 16 : 0)
               : "memory");
}

// Writes 16 bytes at `destination`: `bytes` of them from `source`, then zeros.
__device__ __forceinline__ void cp_async_16_part(uint32_t destination, const void* source,
                                                 int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of the newest groups are unfinished.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace ozaki::ptx
