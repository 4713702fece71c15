// What combine and combine_complex share: a block of outputs of one row, by the number of moduli.
#pragma once

#include <cstdint>

#include "common/tables.h"
#include "cpu/simd.h"

namespace ozaki {

struct CombineRow {
  const uint8_t* v;        // of the first modulus, and the first root of complex products
  int64_t modulus_stride;  // bytes from one modulus to the next
  int32_t scale;
};

// (row, column_scale, count, out): `count` outputs of a row.
using CombineBlock = void (*)(CombineRow, const int32_t*, int, uint64_t*);

// Kernel<moduli>, for at most kMost moduli.
template <template <int> typename Kernel, int kMost, int N = kMinModuli>
CombineBlock combine_block(int moduli) {
  if constexpr (N < kMost) {
    if (moduli != N) return combine_block<Kernel, kMost, N + 1>(moduli);
  }
  return run_simd<Kernel<N>, CombineRow, const int32_t*, int, uint64_t*>;
}

}  // namespace ozaki
