#pragma once

#include <cstdint>

namespace ozaki {

// The low bytes of four words; with kPairsSwapped those of the second pair come first.
constexpr uint32_t kPairsInOrder = 0x5410, kPairsSwapped = 0x1054;
__device__ __forceinline__ uint32_t pack_low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                                   uint32_t order = kPairsInOrder) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), order);
}

}  // namespace ozaki
