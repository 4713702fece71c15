// What reduces a 32-bit accumulator modulo p, for every modulus of a product.
#pragma once

#include <cstdint>

#include "common/tables.h"

namespace ozaki {

// Past kKBlock, accumulators are folded (mma_epilogue.cuh): they go on from below 2^18.
static_assert(uint64_t{255} * 255 * kKBlock + (1 << 18) <= UINT32_MAX, "accumulators would wrap");

constexpr int kGroupSize = 3;  // moduli of a group of the partial CRT

struct EpilogueConstants {
  Table<Modulus, kMaxModuli> modulus;
  uint32_t weights[kMaxModuli];     // Crt<N>::epilogue_weights
  uint32_t multiplier[kMaxModuli];  // Crt<N>::multiplier
};

template <int N, int kCount>
EpilogueConstants epilogue_constants(const Crt<N>& crt, const Table<Modulus, kCount>& moduli) {
  EpilogueConstants constants = {};
  for (int i = 0; i < N; ++i) {
    constants.modulus.at[i] = moduli[i];
    constants.weights[i] = crt.epilogue_weights[i];
    constants.multiplier[i] = crt.multiplier[i];
  }
  return constants;
}

// For products with the first `moduli` moduli of a set.
template <int N = kMinModuli>
EpilogueConstants epilogue_constants(int moduli, ModulusSet set) {
  if constexpr (N < kMaxModuli) {
    if (moduli != N) return epilogue_constants<N + 1>(moduli, set);
  }
  if constexpr (N <= kMaxComplexModuli) {
    if (set == ModulusSet::kComplex) return epilogue_constants(kComplexCrt<N>, kComplexModuli);
  }
  return epilogue_constants(kCrt<N>, kModuli);
}

}  // namespace ozaki
