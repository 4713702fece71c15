// What the generated tables.h holds. Every number in it comes from jax_ozaki/_moduli.py.
#pragma once

#include "common/hd.h"

namespace ozaki {

// An array that can be copied, to CUDA's constant memory for one.
template <typename T, int kSize>
struct Table {
  T at[kSize];
  OZAKI_HD constexpr const T& operator[](int i) const { return at[i]; }
};

// Constants of one modulus p. A residue is a byte congruent to the value, anywhere in [0, p]
// (p = 256 is stored as its low byte).
struct Modulus {
  uint32_t p;
  // Multiply and shift (host form): ceil(2^shift / p).
  uint32_t reciprocal, shift;
  // The float form (device): 1 / p to nearest, and the start of a sum of bytes times weights,
  // the bit pattern of the float 2^23 + (-2^23 mod p). upper_bytes: what mod_p_float leaves in the
  // upper bytes of its result, which no input changes.
  float inverse;
  uint32_t float_zero, upper_bytes;
  // Packed byte weights 2^(8i) mod p, and float_zero minus the offset 2^63 or 2^95, mod p.
  uint32_t narrow_weights[2], narrow_zero;
  uint32_t wide_weights[3], wide_zero;
  // Weights of the upper digits, 2^(22i) or 2^(20i) mod p, and minus the offset 2^63 or 2^79.
  uint32_t narrow_digits[2], narrow_bias;
  uint32_t wide_digits[3], wide_bias;
};

// Real products have one set of moduli, complex ones another: every prime factor of its moduli is 1
// mod 4, so that -1 has two square roots s and p - s, and a maps to a_r + s a_i mod p.
enum class ModulusSet { kReal, kComplex };

// The roots s and p - s of one modulus, and how the imaginary part enters a residue by them.
struct ImaginaryUnit {
  uint32_t root, minus_root;
  // Byte weights as in Modulus, times s. With r the weighted sum of the real part, from `zero` on,
  // and i that of the imaginary part, r + i and r - i start residues by either root: `zero` covers
  // the offset of the real part and that i may have either sign.
  uint32_t narrow_weights[2], narrow_zero;
  uint32_t wide_weights[3], wide_zero;
};

// H = sqrt(P (1/2 - 2^-8)) rounded down to mantissa 2^exponent, 2^31 <= mantissa < 2^32.
struct Bound {
  uint32_t mantissa;
  int32_t exponent;
};

// log2 of H in units of 1/256, rounded up and one more, and of H^2, rounded down.
struct LogBound {
  int32_t norm, product;
};

// round(S / P) = round(floor(S 2^-(32 limb + drop)) factor 2^-(32 + shift)), limb the weights' top one
// or the next below.
struct Quotient {
  int top, limb, drop;
  uint32_t factor;
  int shift;
};

// The Chinese remainder theorem for the first N moduli, in groups of three (Q_g their product):
//   y_g = sum_i v_i multiplier_i,  v_i = X inv_i mod p_i,  multiplier_i = Q_g / p_i
//   S = sum_g y_g weight_g,  q = round(S / P),  X = S - q P   mod 2^(32 kLimbs)
template <int N>
struct Crt {
  static constexpr int kGroups = (N + 2) / 3;
  static constexpr int kLimbs = N <= 12 ? 3 : N <= 16 ? 4 : 5;
  uint32_t multiplier[N];
  uint32_t weight[kGroups][kLimbs];  // 0 above limb quotient.top
  Quotient quotient;
  uint32_t minus_product[kLimbs];  // 2^(32 kLimbs) - P
  // Packed byte weights 2^(8j) inv_i mod p_i; for complex products 2^(8j) inv_i / 2.
  uint32_t epilogue_weights[N];
};

}  // namespace ozaki
