// From residues back to the exact integer X, and one rounding to float64: numerics.md, section 6.
#pragma once

#include <cmath>

#include "common/float64.h"
#include "common/float64_units.h"
#include "common/tables.h"

namespace ozaki {

// A two's complement integer in L 32-bit limbs, the lowest first.
template <int L>
struct Limbs {
  uint32_t at[L];
};

template <int N, ModulusSet kSet>
OZAKI_HD constexpr Crt<N> crt_of() {
  if constexpr (kSet == ModulusSet::kComplex) {
    return kComplexCrt<N>;
  } else {
    return kCrt<N>;
  }
}

// The partial sums y_g < 2^26 of v_i = X inv_i mod p_i, v_i in [0, p_i]. The v_i come as bytes,
// those of moduli 2j and 2j + 1 side by side in the lower or the upper half of word j.
template <int N>
OZAKI_HD void partial_crt(const uint32_t (&pairs)[(N + 1) / 2], bool upper,
                          uint32_t (&y)[Crt<N>::kGroups]) {
  constexpr Crt<N> c = kCrt<N>;
  OZAKI_UNROLL
  for (int g = 0; g < Crt<N>::kGroups; ++g) {
    const int first = 3 * g, end = first + 3 < N ? first + 3 : N;
    y[g] = 0;
    OZAKI_UNROLL
    for (int j = first / 2; 2 * j < end; ++j) {
      const uint32_t low = 2 * j >= first ? c.multiplier[2 * j] : 0;
      const uint32_t high = 2 * j + 1 < end ? c.multiplier[2 * j + 1] : 0;
      y[g] = dot2(high << 16 | low, pairs[j], upper, y[g]);
    }
  }
}

// X, |X| <= P (1/2 - 2^-8), from the partial sums, or from sums of them below 2^29.
template <int N, ModulusSet kSet = ModulusSet::kReal>
OZAKI_HD Limbs<Crt<N>::kLimbs> reconstruct(const uint32_t (&y)[Crt<N>::kGroups]) {
  constexpr Crt<N> c = crt_of<N, kSet>();
  constexpr int L = Crt<N>::kLimbs, kTop = c.quotient.top, kLow = c.quotient.limb;
  uint64_t sum[L] = {};  // below 7 2^29 2^32 each: carries can wait
  OZAKI_UNROLL
  for (int g = 0; g < Crt<N>::kGroups; ++g) {
    OZAKI_UNROLL
    for (int l = 0; l <= kTop; ++l) sum[l] += uint64_t{y[g]} * c.weight[g][l];
  }
  uint64_t leading = sum[kTop];
  if constexpr (kLow < kTop) leading = (leading << 32) + sum[kLow];
  if constexpr (kLow > 0) leading += sum[kLow - 1] >> 32;
  const uint32_t scaled =
      multiply_high(static_cast<uint32_t>(leading >> c.quotient.drop), c.quotient.factor);
  const uint32_t q = (scaled + (1u << (c.quotient.shift - 1))) >> c.quotient.shift;
  Limbs<L> x;
  uint32_t carry = 0;
  OZAKI_UNROLL
  for (int l = 0; l < L; ++l) {
    const uint64_t limb = sum[l] + uint64_t{q} * c.minus_product[l] + carry;
    x.at[l] = static_cast<uint32_t>(limb);
    carry = static_cast<uint32_t>(limb >> 32);
  }
  return x;
}

// The leading one of x > 0 goes to bit 31 of the top limb; the number of places it moved.
template <int L>
OZAKI_HD int normalize(Limbs<L>& x) {
  int places = 0;
  while (x.at[L - 1] == 0) {
    OZAKI_UNROLL
    for (int i = L - 1; i > 0; --i) x.at[i] = x.at[i - 1];
    x.at[0] = 0;
    places += 32;
  }
  const int zeros = clz32(x.at[L - 1]);
  OZAKI_UNROLL
  for (int i = L - 1; i > 0; --i) x.at[i] = shift_left(x.at[i], x.at[i - 1], zeros);
  x.at[0] <<= zeros;
  return places + zeros;
}

// X 2^-scale rounded to float64, half to even, as bits: subnormals are rounded once, overflow gives
// the signed infinity, X = 0 gives +0.
template <int L>
OZAKI_HD uint64_t round_to_float64(Limbs<L> x, int scale) {
  const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(x.at[L - 1]) >> 31);
  uint64_t carry = sign & 1;
  uint32_t any = 0;
  OZAKI_UNROLL
  for (int l = 0; l < L; ++l) {  // |X|
    carry += x.at[l] ^ sign;
    x.at[l] = static_cast<uint32_t>(carry);
    any |= x.at[l];
    carry >>= 32;
  }
  if (any == 0) return 0;
  const int field = 1023 + 32 * L - 1 - scale - normalize(x);  // biased exponent
  const uint64_t leading = uint64_t{x.at[L - 1]} << 32 | x.at[L - 2];
  uint32_t rest = 0;
  OZAKI_UNROLL
  for (int l = 0; l < L - 2; ++l) rest |= x.at[l];

  const uint64_t negative = uint64_t{sign & 0x80000000} << 32;
  if (field >= 2047) return negative | kInfinityBits;
  // A subnormal keeps fewer bits. The leading one of a normal number adds one to the exponent
  // field, as a carry out of rounding does.
  const int drop = field >= 1 ? 11 : 12 - field;
  if (drop > 64) return negative;
  const uint64_t kept = drop == 64 ? 0 : leading >> drop;
  const uint64_t dropped = leading << (64 - drop);
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  const bool up = dropped > kHalf || (dropped == kHalf && (rest != 0 || (kept & 1) != 0));
  const uint64_t exponent = field >= 1 ? static_cast<uint64_t>(field - 1) << 52 : 0;
  return negative | (exponent + kept + (up ? 1 : 0));
}

// The same where the result is zero or a normal number; otherwise false.
//
// The digits of |X| are taken from those of X, flipped where X is negative: that is |X| - 1, and
// the one is added with the rounding. |X| = 2^i has its exponent one too low then, and a carry
// out of the fraction that makes up for it.
template <int L>
OZAKI_HD bool round_to_normal(Limbs<L> x, int scale, uint64_t& bits) {
  const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(x.at[L - 1]) >> 31);
  int field = 1023 + 32 * L - 1 - scale;  // biased exponent of the top limb's bit 31
  for (int l = 0; l < L && x.at[L - 1] == sign; ++l) {
    OZAKI_UNROLL
    for (int i = L - 1; i > 0; --i) x.at[i] = x.at[i - 1];
    x.at[0] = 0;
    field -= 32;
  }
  const uint32_t top = x.at[L - 1] ^ sign;  // 0 for X = 0 alone
  const int zeros = clz32(top | 1);
  field = top == 0 ? 1 : field - zeros;
  const uint32_t high = shift_left(x.at[L - 1], x.at[L - 2], zeros) ^ sign;
  const uint32_t low = shift_left(x.at[L - 2], x.at[L - 3], zeros) ^ sign;
  uint32_t rest = x.at[L - 3] << zeros;
  OZAKI_UNROLL
  for (int l = 0; l < L - 3; ++l) rest |= x.at[l];

  constexpr uint32_t kUnit = 1u << 21;  // the last digit of `low`, after it moved to the top
  const uint32_t kept = low >> 11 | high << 21, dropped = low << 21;
  const uint32_t below = rest != 0 ? 1 : sign & kUnit;
  const uint64_t rounded = uint64_t{dropped} + (0x7fffffff + below + (kept & 1));
  const uint32_t upper = (high >> 11) + (static_cast<uint32_t>(field - 1) << 20);
  bits = ((uint64_t{upper} << 32 | kept) + (rounded >> 32)) | uint64_t{sign & 0x80000000} << 32;
  return field >= 1 && field < 2047;
}

// The three upper limbs of X, in units of the third, rounded to float64 half to even: each of two
// terms has its digits below a leading one, which is taken off again. The last digit of the second
// term says whether X goes on; that leaves results of at least kExact right.
template <int L>
OZAKI_HD double round_upper_limbs(const Limbs<L>& x, uint32_t sign) {
  const uint32_t top = x.at[L - 1], middle = x.at[L - 2], low = x.at[L - 3];
  uint32_t rest = 0;
  OZAKI_UNROLL
  for (int l = 0; l < L - 3; ++l) rest |= x.at[l];
  constexpr uint32_t k2To96 = (1023 + 96) << 20, k2To44 = (1023 + 44) << 20;  // upper words
  const double upper = of_words(k2To96 + (top >> 12), shift_left(top, middle, 20)) -
                       of_words(k2To96 + (sign & 1u << 20), 0);  // 2^97 where X is negative
  const double lower =
      of_words(k2To44 | (shift_left(middle, low, 8) & 0xfffff), low << 8 | (rest != 0 ? 1 : 0)) -
      of_words(k2To44, 0);
  return upper + lower;
}

// round_to_normal of several numbers, by a few float64 instructions; whether all results are right.
template <int L, int kCount>
OZAKI_HD bool round_by_float64_units(const Limbs<L> (&x)[kCount], const int (&scale)[kCount],
                                     uint64_t (&bits)[kCount]) {
  constexpr double kExact = 1ull << 54;
  double rounded[kCount];
  int exponent[kCount];
  const auto is_short = [](double x) { return fabs(x) < kExact; };
  bool any_short = false;
  OZAKI_UNROLL
  for (int e = 0; e < kCount; ++e) {
    rounded[e] = round_upper_limbs(x[e], static_cast<int32_t>(x[e].at[L - 1]) >> 31);
    exponent[e] = 32 * (L - 3) - scale[e];
    any_short |= is_short(rounded[e]);
  }
  if (any_short) {
    OZAKI_UNROLL
    for (int e = 0; e < kCount; ++e) {
      const int32_t sign = static_cast<int32_t>(x[e].at[L - 1]) >> 31;
      Limbs<L> shifted = x[e];
      for (int l = 0; l < L - 3 && is_short(rounded[e]); ++l) {
        OZAKI_UNROLL
        for (int i = L - 1; i > 0; --i) shifted.at[i] = shifted.at[i - 1];
        shifted.at[0] = 0;
        rounded[e] = round_upper_limbs(shifted, sign);
        exponent[e] -= 32;
      }
      if (rounded[e] == 0) exponent[e] = 0;
    }
  }
  bool normal = true;
  OZAKI_UNROLL
  for (int e = 0; e < kCount; ++e) {
    const uint32_t upper = upper_word(rounded[e]);
    const int field = static_cast<int>(upper >> 20 & 0x7ff) + exponent[e];
    normal &= static_cast<uint32_t>(field - 1) < 2046 || upper == 0;
    bits[e] =
        uint64_t{upper + (static_cast<uint32_t>(exponent[e]) << 20)} << 32 | lower_word(rounded[e]);
  }
  return normal;
}

// The same by the units that the device has many of.
template <int L, int kCount>
OZAKI_HD bool round_to_normal(const Limbs<L> (&x)[kCount], const int (&scale)[kCount],
                              uint64_t (&bits)[kCount]) {
#if OZAKI_FULL_RATE_FLOAT64
  return round_by_float64_units(x, scale, bits);
#else
  bool normal = true;
  OZAKI_UNROLL
  for (int e = 0; e < kCount; ++e) normal &= round_to_normal(x[e], scale[e], bits[e]);
  return normal;
#endif
}

}  // namespace ozaki
