// An output as an integer sum of its products, for what no modulus set holds nor a float64 sum.
// Integers add up in any order, so every device has the same bits.
#pragma once

#include "common/crt.h"

namespace ozaki {

// A finite nonzero value as +-fraction 2^(exponent - 53), 2^52 <= fraction < 2^53.
struct Normalised {
  uint64_t fraction;
  int exponent;
  bool negative;
};

OZAKI_HD Normalised normalise(uint64_t bits) {
  const uint64_t x = significand(bits);
  const int length = bit_length(x);
  return {x << (53 - length), exponent(bits) + length, is_negative(bits)};
}

// The exact product of two fractions: [2^104, 2^106).
struct Product106 {
  uint64_t high, low;
};

OZAKI_HD Product106 multiply(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return {__umul64hi(a, b), a * b};
#else
  const unsigned __int128 x = static_cast<unsigned __int128>(a) * b;
  return {static_cast<uint64_t>(x >> 64), static_cast<uint64_t>(x)};
#endif
}

// Products are summed in units of 2^(top - kWindow), top the largest sum of the exponents of a
// product's two factors: |AB| >= 2^(top - 2), so k terms, each cut by less than a unit, are wrong
// by less than k 2^(2 - kWindow) |A||B|. Sums of up to 2^32 terms fit 127 bits.
constexpr int kWindow = 94;

struct WindowSum {
  uint64_t high = 0, low = 0;  // two's complement
  bool cut = false;            // whether any term lost bits

  OZAKI_HD void add(const Normalised& a, const Normalised& b, int top) {
    const int shift = 106 - kWindow + top - a.exponent - b.exponent;  // at least 12
    const Product106 x = multiply(a.fraction, b.fraction);
    uint64_t upper, lower;
    if (shift < 64) {
      lower = x.low >> shift | x.high << (64 - shift);
      upper = x.high >> shift;
      cut |= x.low << (64 - shift) != 0;
    } else if (shift < 106) {
      lower = x.high >> (shift - 64);
      upper = 0;
      cut |= x.low != 0 || (lower << (shift - 64)) != x.high;
    } else {
      cut = true;
      return;
    }
    if (a.negative != b.negative) {
      lower = ~lower + 1;
      upper = ~upper + (lower == 0 ? 1 : 0);
    }
    join(upper, lower);
  }

  OZAKI_HD void join(const WindowSum& other) {
    join(other.high, other.low);
    cut |= other.cut;
  }

  // The float64 nearest to the sum plus `units`, as bits.
  OZAKI_HD uint64_t rounded(int top, int64_t units = 0) const {
    WindowSum shifted = *this;
    shifted.join(units < 0 ? ~uint64_t{0} : 0, static_cast<uint64_t>(units));
    const Limbs<4> x = {
        {static_cast<uint32_t>(shifted.low), static_cast<uint32_t>(shifted.low >> 32),
         static_cast<uint32_t>(shifted.high), static_cast<uint32_t>(shifted.high >> 32)}};
    return round_to_float64(x, kWindow - top);
  }

  // Whether rounded(top) is the exact sum correctly rounded: k terms, each cut by less than a unit.
  OZAKI_HD bool decides(int top, int64_t k) const {
    return !cut || rounded(top, -k) == rounded(top, k);
  }

 private:
  OZAKI_HD void join(uint64_t upper, uint64_t lower) {
    low += lower;
    high += upper + (low < lower ? 1 : 0);
  }
};

// The whole range of products in 32-bit digits of signed 64-bit words: digit q counts units of
// 2^(32 q + kLowestExponent). 2^30 terms need no carries.
constexpr int kLowestExponent = -2272;  // at most -1073 - 1073 - 106, a multiple of 32
constexpr int kDigits = 138;            // up to 2^2144: above 2^(1024 + 1024 + 30)

// Adds a b to digits through add(q, signed piece), five pieces at most.
template <typename Add>
OZAKI_HD void add_exactly(const Normalised& a, const Normalised& b, const Add& add) {
  const int lowest = a.exponent + b.exponent - 106 - kLowestExponent;
  const int digit = lowest >> 5, shift = lowest & 31;
  const Product106 x = multiply(a.fraction, b.fraction);
  const bool negative = a.negative != b.negative;
  uint64_t rest[2] = {x.low, x.high};
  uint64_t carried = 0;  // bits below the next digit
  for (int i = 0; i < 5; ++i) {
    const uint64_t word = i < 4 ? (rest[i >> 1] >> (32 * (i & 1))) & 0xffffffff : 0;
    const uint64_t piece = (word << shift | carried) & 0xffffffff;
    carried = (word << shift | carried) >> 32;
    if (piece != 0)
      add(digit + i, negative ? -static_cast<int64_t>(piece) : static_cast<int64_t>(piece));
  }
}

// The digits rounded to float64, half to even, as bits. Changes the digits.
OZAKI_HD uint64_t round_digits(int64_t* digits) {
  int64_t carry = 0;
  OZAKI_LOOP
  for (int q = 0; q < kDigits; ++q) {
    carry += digits[q];
    digits[q] = carry & 0xffffffff;
    carry >>= 32;  // towards minus infinity
  }
  const bool negative = carry < 0;
  if (negative) {
    uint64_t one = 1;
    OZAKI_LOOP
    for (int q = 0; q < kDigits; ++q) {
      one += ~static_cast<uint64_t>(digits[q]) & 0xffffffff;
      digits[q] = static_cast<int64_t>(one & 0xffffffff);
      one >>= 32;
    }
  }
  int top = kDigits - 1;
  while (top > 3 && digits[top] == 0) --top;
  Limbs<5> x = {};
  for (int l = 0; l < 4; ++l) x.at[l] = static_cast<uint32_t>(digits[top - 3 + l]);
  OZAKI_LOOP
  for (int q = 0; q < top - 3; ++q) x.at[0] |= digits[q] != 0 ? 1 : 0;
  return round_to_float64(x, -(32 * (top - 3) + kLowestExponent)) | (negative ? kSignBit : 0);
}

}  // namespace ozaki
