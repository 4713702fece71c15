// Complex products by two real ones a modulus: numerics.md, section 1. With s^2 = -1 mod p,
//   a+- = a_r +- s a_i,  c+- = a+- b+-,  c_r = (c+ + c-) / 2,  c_i = (c+ - c-) / (2 s).
// The products come with the 1/2 and the CRT's inverse folded in, v+- = c+- inv / 2.
#pragma once

#include "common/classify.h"
#include "common/quantize.h"
#include "common/tables.h"

namespace ozaki {

// Moduli of the complex set up to which |A'| <= H < 2^63, for either part.
constexpr int kMaxNarrowComplexModuli = 17;

// Residues of one element by both roots.
struct RootResidues {
  uint32_t plus, minus;
};

// Host form: from the residues of its parts, all in [0, p).
OZAKI_HD RootResidues root_residues(uint32_t re, uint32_t im, const Modulus& m,
                                    const ImaginaryUnit& unit) {
  return {mod_p(re + im * unit.root, m), mod_p(re + im * unit.minus_root, m)};
}

// Device form: the low bytes are the residues, in [0, p]. A real part comes as the words of x + 2^63
// or x + 2^95, the lowest first.
OZAKI_HD void to_words(int64_t x, uint32_t (&words)[2]) {
  words[0] = static_cast<uint32_t>(x);
  words[1] = static_cast<uint32_t>(x >> 32) ^ 1u << 31;
}
OZAKI_HD void to_words(const Int96& x, uint32_t (&words)[3]) {
  words[0] = x.low;
  words[1] = static_cast<uint32_t>(x.high);
  words[2] = static_cast<uint32_t>(x.high >> 32) ^ 1u << 31;
}

// An imaginary part comes as those of x, the highest one in digits from -128 to 127: what has no
// offset is subtracted as it is added. From the words of a real part.
template <int kWords>
OZAKI_HD void to_imaginary(uint32_t (&words)[kWords]) {
  constexpr uint32_t kHalves = 0x00808080;
  uint32_t& highest = words[kWords - 1];
  highest = ((highest ^ 1u << 31) + kHalves) ^ kHalves;
}

template <int kWords>
OZAKI_HD RootResidues root_residues_float(const uint32_t (&re)[kWords],
                                          const uint32_t (&im)[kWords], const Modulus& m,
                                          const ImaginaryUnit& unit) {
  static_assert(kWords == 2 || kWords == 3);
  uint32_t r = kWords == 2 ? unit.narrow_zero : unit.wide_zero;
  OZAKI_UNROLL
  for (int i = 0; i < kWords; ++i) {
    r = dot4(re[i], kWords == 2 ? m.narrow_weights[i] : m.wide_weights[i], r);
  }
  const auto weights = [&](int i) {
    return kWords == 2 ? unit.narrow_weights[i] : unit.wide_weights[i];
  };
  uint32_t plus = dot4_signed(im[kWords - 1], weights(kWords - 1), r);
  OZAKI_UNROLL
  for (int i = 0; i < kWords - 1; ++i) plus = dot4(im[i], weights(i), plus);
  return {mod_p_float(plus, m), mod_p_float(2 * r - plus, m)};
}

// c_i inv = (v+ - v-) / s = (p - s) v+ + s v- mod p, in [0, p).
OZAKI_HD uint32_t imaginary_residue(uint32_t plus, uint32_t minus, const Modulus& m,
                                    const ImaginaryUnit& unit) {
  return mod_p(plus * unit.minus_root + minus * unit.root, m);
}

constexpr uint32_t kFloatBits = 0x4b000000;  // of the float 2^23

// Device form of c_i inv in the sum y_g, from d = v- - v+ plus a multiple of p, 0 <= d < 2^12: s m x -
// q Q for m = Q / p and x congruent to d, since y_g counts modulo Q alone. One fma gives an integer q
// with -1 < s x / p - q < 1, for x = 2^23 + (-2^23 mod p) + d.
struct ImaginarySummand {
  uint32_t weight;  // s m, for the bits of the float x: m.float_zero + d
  uint32_t start;   // what the sum begins with: 2^23 counts otherwise in the bits of floats
  float inverse;    // s / p, below 1/2

  OZAKI_HD constexpr ImaginarySummand(const Modulus& m, const ImaginaryUnit& unit,
                                      uint32_t multiplier)
      : weight(unit.root * multiplier),
        start(m.p * multiplier * (kFloatBits + 1) - (kFloatBits - (1u << 23)) * weight),
        inverse(static_cast<float>(unit.root) / static_cast<float>(m.p)) {}

  // kFloatBits + q
  OZAKI_HD uint32_t quotient(uint32_t x) const {
    constexpr float kBias = 8388608.0f;
#if defined(__CUDA_ARCH__)
    return __float_as_uint(__fmaf_rn(__uint_as_float(x), inverse, kBias));
#else
    float of_bits;
    memcpy(&of_bits, &x, sizeof x);
    const float sum = std::fmaf(of_bits, inverse, kBias);
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return bits;
#endif
  }
};

// What the products of one output with non-finite rows or columns add up to, part by part.
struct ComplexSpecialSum {
  SpecialSum re, im;

  OZAKI_HD void add(const uint64_t (&a)[2], const uint64_t (&b)[2]) {
    re.add(a[0], b[0]);
    re.add(a[1] ^ kSignBit, b[1]);
    im.add(a[0], b[1]);
    im.add(a[1], b[0]);
  }
};

}  // namespace ozaki
