// What reduces a 32-bit accumulator modulo p, for every modulus of a product.
#pragma once

#include <cstdint>
#include <utility>

#include "common/tables.h"

namespace ozaki {

// Past kKBlock, accumulators are folded (mma_epilogue.cuh): they go on from below 2^18.
static_assert(uint64_t{255} * 255 * kKBlock + (1 << 18) <= UINT32_MAX, "accumulators would wrap");

constexpr int kGroupSize = 3;  // moduli of a group of the partial CRT

struct EpilogueConstants {
  ModulusTable modulus;
  uint32_t weights[kMaxModuli];     // Crt<N>::epilogue_weights
  uint32_t multiplier[kMaxModuli];  // Crt<N>::multiplier
};

template <int N>
void set_crt_constants(EpilogueConstants* constants) {
  for (int i = 0; i < N; ++i) {
    constants->weights[i] = kCrt<N>.epilogue_weights[i];
    constants->multiplier[i] = kCrt<N>.multiplier[i];
  }
}

template <int... I>
EpilogueConstants epilogue_constants(int moduli, std::integer_sequence<int, I...>) {
  EpilogueConstants constants = {kModuli, {}, {}};
  ((kMinModuli + I == moduli ? set_crt_constants<kMinModuli + I>(&constants) : void()), ...);
  return constants;
}

// For products with the first `moduli` moduli.
inline EpilogueConstants epilogue_constants(int moduli) {
  constexpr int kCounts = kMaxModuli - kMinModuli + 1;
  return epilogue_constants(moduli, std::make_integer_sequence<int, kCounts>());
}

}  // namespace ozaki
