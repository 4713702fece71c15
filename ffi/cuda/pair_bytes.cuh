// The bytes of two moduli side by side, as partial_crt takes them.
#pragma once

#include <cstdint>

namespace ozaki {

// Of eight columns of N moduli, v[i], those of the columns e and e + 1, e even: the first in the
// lower, the second in the upper half of a word.
template <int N>
__device__ __forceinline__ void pair_bytes(const uint2 (&v)[N], int e,
                                           uint32_t (&pairs)[(N + 1) / 2]) {
#pragma unroll
  for (int j = 0; j < (N + 1) / 2; ++j) {
    const uint2 &first = v[2 * j], &second = v[min(2 * j + 1, N - 1)];
    pairs[j] = __byte_perm(e < 4 ? first.x : first.y, e < 4 ? second.x : second.y,
                           e % 4 == 0 ? 0x5140 : 0x7362);
  }
}

}  // namespace ozaki
