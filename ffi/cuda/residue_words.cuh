// An element in registers on its way to residues: as an integer in words, and as bytes of several.
#pragma once

#include <cstdint>

#include "common/quantize.h"
#include "common/tables.h"
#include "pack_bytes.cuh"

namespace ozaki {

// An element as what its residues are computed from: an integer, offset so that it is not negative,
// in words. This is residue_float of common/residue.h with the offset outside the loop over moduli.
struct Narrow {
  static constexpr int kMaxModuli = kMaxNarrowModuli;
  uint32_t words[2];

  Narrow() = default;
  __device__ __forceinline__ explicit Narrow(int64_t x)
      : words{static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32) ^ 1u << 31} {}
  __device__ __forceinline__ Narrow(uint64_t bits, int32_t scale)
      : Narrow(quantize_narrow(bits, scale)) {}
  __device__ __forceinline__ uint32_t residue(const Modulus& m) const {
    if (m.p == 256) return words[0];
    const uint32_t sum = dot4(words[1], m.narrow_weights[1], m.narrow_zero);
    return mod_p_float(dot4(words[0], m.narrow_weights[0], sum), m);
  }
};

struct Wide {
  static constexpr int kMaxModuli = ozaki::kMaxModuli;
  uint32_t words[3];

  Wide() = default;
  __device__ __forceinline__ Wide(uint64_t bits, int32_t scale) {
    const Int96 x = quantize_wide(bits, scale);
    words[0] = x.low;
    words[1] = static_cast<uint32_t>(x.high);
    words[2] = static_cast<uint32_t>(x.high >> 32) ^ 1u << 31;
  }
  __device__ __forceinline__ uint32_t residue(const Modulus& m) const {
    if (m.p == 256) return words[0];
    uint32_t sum = dot4(words[2], m.wide_weights[2], m.wide_zero);
    sum = dot4(words[1], m.wide_weights[1], sum);
    return mod_p_float(dot4(words[0], m.wide_weights[0], sum), m);
  }
};

}  // namespace ozaki
