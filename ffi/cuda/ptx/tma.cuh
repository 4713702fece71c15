// Bulk tensor copies from global to shared memory; what lies outside the tensor arrives as zeros.
// With kCtas > 1 a copy writes to the same place in each CTA of the cluster and completes on each
// one's own barrier.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ozaki::ptx {

template <int kCtas>
__device__ __forceinline__ void tma_load_3d(uint32_t destination, const CUtensorMap* map,
                                            uint32_t barrier, int x, int y, int z) {
  if constexpr (kCtas == 1) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(destination),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
  } else {
    constexpr uint16_t kMask = (1 << kCtas) - 1;
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(destination),
        "l"(map), "r"(barrier), "h"(kMask), "r"(x), "r"(y), "r"(z)
        : "memory");
  }
}

template <int kCtas>
__device__ __forceinline__ void tma_load_5d(uint32_t destination, const CUtensorMap* map,
                                            uint32_t barrier, int x0, int x1, int x2, int x3,
                                            int x4) {
  if constexpr (kCtas == 1) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(destination),
        "l"(map), "r"(barrier), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
        : "memory");
  } else {
    constexpr uint16_t kMask = (1 << kCtas) - 1;
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(destination),
        "l"(map), "r"(barrier), "h"(kMask), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
        : "memory");
  }
}

}  // namespace ozaki::ptx
