// Residues modulo p, in the form that suits a device (byte dot products and one fma) and in the
// form that suits a vectorising host compiler (digits, multiply and shift).
#pragma once

#if !defined(__CUDA_ARCH__)
#include <cmath>
#endif

#include "common/constants.h"

namespace ozaki {

// high 2^32 + low
struct Int96 {
  int64_t high;
  uint32_t low;
};

// s mod p in [0, p), for s < 2^31.
OZAKI_HD uint32_t mod_p(uint32_t s, const Modulus& m) {
  return s - static_cast<uint32_t>((uint64_t{s} * m.reciprocal) >> m.shift) * m.p;
}

// c + sum of the products of the unsigned bytes of a and b.
OZAKI_HD uint32_t dot4(uint32_t a, uint32_t b, uint32_t c) {
#if defined(__CUDA_ARCH__)
  return __dp4a(a, b, c);
#else
  for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
  return c;
#endif
}

// The same with bytes of a from -128 to 127.
OZAKI_HD uint32_t dot4_signed(uint32_t a, uint32_t b, uint32_t c) {
#if defined(__CUDA_ARCH__)
  uint32_t sum;
  asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
#else
  for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i & 255) * (b >> i & 255);
  return c;
#endif
}

// v mod p for s = m.float_zero + v, v < 2^20: the *low byte* of the result is the residue, in [0,
// p].
//
// As a float s is x = 2^23 + v + (-2^23 mod p), congruent to v. The fma adds a half-integer that
// makes x / p - 1/2 round to an integer q with x - p q in [0, p]; the rest of that constant and
// the exponent bits of both floats are multiples of 256 and leave the low byte alone.
OZAKI_HD uint32_t mod_p_float(uint32_t s, const Modulus& m) {
  constexpr float kBias = 8388608.0f - 32768.0f + 256.0f - 0.5f;
#if defined(__CUDA_ARCH__)
  const float quotient = __fmaf_rn(__uint_as_float(s), m.inverse, kBias);
  uint32_t result;  // one mad: the compiler would split s - p q in two
  asm("mad.lo.u32 %0, %1, %2, %3;"
      : "=r"(result)
      : "r"(__float_as_uint(quotient)), "r"(0u - m.p), "r"(s));
  return result;
#else
  float x;
  memcpy(&x, &s, sizeof x);
  const float quotient = std::fmaf(x, m.inverse, kBias);
  uint32_t bits;
  memcpy(&bits, &quotient, sizeof bits);
  return s - m.p * bits;
#endif
}

// Device form, as mod_p_float: the low byte is the residue. |x| < 2^63 and |x| < 2^95.
OZAKI_HD uint32_t residue_float(int64_t x, const Modulus& m) {
  const uint64_t offset = static_cast<uint64_t>(x) ^ uint64_t { 1 } << 63;  // x + 2^63
  const uint32_t upper =
      dot4(static_cast<uint32_t>(offset >> 32), m.narrow_weights[1], m.narrow_zero);
  return mod_p_float(dot4(static_cast<uint32_t>(offset), m.narrow_weights[0], upper), m);
}

OZAKI_HD uint32_t residue_float(Int96 x, const Modulus& m) {
  const uint64_t offset = static_cast<uint64_t>(x.high) ^ uint64_t { 1 } << 63;  // x + 2^95
  uint32_t sum = dot4(static_cast<uint32_t>(offset >> 32), m.wide_weights[2], m.wide_zero);
  sum = dot4(static_cast<uint32_t>(offset), m.wide_weights[1], sum);
  return mod_p_float(dot4(x.low, m.wide_weights[0], sum), m);
}

// Host form: x plus an offset as digits, then their residue in [0, p).
// Narrow, |x| < 2^63: x + 2^63 in three digits of 22 bits.
OZAKI_HD void to_digits(int64_t x, uint32_t (&digits)[3]) {
  constexpr uint32_t kMask = (1u << 22) - 1;
  const uint64_t offset = static_cast<uint64_t>(x) ^ uint64_t { 1 } << 63;
  digits[0] = static_cast<uint32_t>(offset) & kMask;
  digits[1] = static_cast<uint32_t>(offset >> 22) & kMask;
  digits[2] = static_cast<uint32_t>(offset >> 44);
}

// Wide, |x| < 2^79: x + 2^79 in four digits of 20 bits.
OZAKI_HD void to_digits(Int96 x, uint32_t (&digits)[4]) {
  constexpr uint32_t kMask = (1u << 20) - 1;
  const uint64_t high = static_cast<uint64_t>(x.high) + (uint64_t{1} << 47);
  digits[0] = x.low & kMask;
  digits[1] = (x.low >> 20 | static_cast<uint32_t>(high) << 12) & kMask;
  digits[2] = static_cast<uint32_t>(high >> 8) & kMask;
  digits[3] = static_cast<uint32_t>(high >> 28);
}

OZAKI_HD uint32_t digits_mod_p(const uint32_t (&digits)[3], const Modulus& m) {
  return mod_p(
      digits[0] + digits[1] * m.narrow_digits[0] + digits[2] * m.narrow_digits[1] + m.narrow_bias,
      m);
}

OZAKI_HD uint32_t digits_mod_p(const uint32_t (&digits)[4], const Modulus& m) {
  return mod_p(digits[0] + digits[1] * m.wide_digits[0] + digits[2] * m.wide_digits[1] +
                   digits[3] * m.wide_digits[2] + m.wide_bias,
               m);
}

// The epilogue of a residue GEMM, v = accumulator * inv mod p for any 32-bit accumulator, with
// weights = Crt<N>::epilogue_weights[i]. Device form: the low byte.
OZAKI_HD uint32_t epilogue_float(uint32_t accumulator, uint32_t weights, const Modulus& m) {
  return mod_p_float(dot4(accumulator, weights, m.float_zero), m);
}

OZAKI_HD uint32_t epilogue(uint32_t accumulator, uint32_t weights, const Modulus& m) {
  return mod_p(dot4(accumulator, weights, 0), m);
}

}  // namespace ozaki
