// Bulk copies from global to shared memory (sm_90 and later), counted by a barrier.
#pragma once

#include <cstdint>

namespace ozaki::ptx {

// Addresses and sizes are multiples of 16 bytes.
__device__ __forceinline__ void cp_async_bulk(uint32_t destination, const void* source, int bytes,
                                              uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace ozaki::ptx
