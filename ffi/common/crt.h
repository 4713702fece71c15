// From residues back to the exact integer X, and one rounding to float64: numerics.md, section 6.
#pragma once

#include "common/float64.h"
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

// The partial sums y_g < 2^26 of v_i = X inv_i mod p_i, v_i in [0, p_i].
template <int N>
OZAKI_HD void partial_crt(const uint32_t (&v)[N], uint32_t (&y)[Crt<N>::kGroups]) {
  constexpr Crt<N> c = kCrt<N>;
  OZAKI_UNROLL
  for (int g = 0; g < Crt<N>::kGroups; ++g) y[g] = 0;
  OZAKI_UNROLL
  for (int i = 0; i < N; ++i) y[i / 3] += v[i] * c.multiplier[i];
}

// X, |X| <= P (1/2 - 2^-8), from the partial sums, or from sums of two of each: y_g < 2^27.
template <int N, ModulusSet kSet = ModulusSet::kReal>
OZAKI_HD Limbs<Crt<N>::kLimbs> reconstruct(const uint32_t (&y)[Crt<N>::kGroups]) {
  constexpr Crt<N> c = crt_of<N, kSet>();
  constexpr int L = Crt<N>::kLimbs;
  uint64_t quotient = uint64_t{1} << (kQuotientShift - 1);
  uint64_t sum[L] = {};  // at most 7 2^27 2^32 each: carries can wait
  OZAKI_UNROLL
  for (int g = 0; g < Crt<N>::kGroups; ++g) {
    quotient += uint64_t{y[g]} * c.factor[g];
    OZAKI_UNROLL
    for (int l = 0; l < L; ++l) sum[l] += uint64_t{y[g]} * c.weight[g][l];
  }
  const uint32_t q = static_cast<uint32_t>(quotient >> kQuotientShift);
  Limbs<L> x;
  uint64_t carry = 0;
  OZAKI_UNROLL
  for (int l = 0; l < L; ++l) {
    carry += sum[l] + uint64_t{q} * c.minus_product[l];
    x.at[l] = static_cast<uint32_t>(carry);
    carry >>= 32;
  }
  return x;
}

// X 2^-scale rounded to float64, half to even, as bits: subnormals are rounded once, overflow gives
// the signed infinity, X = 0 gives +0.
template <int L>
OZAKI_HD uint64_t round_to_float64(Limbs<L> x, int scale) {
  const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(x.at[L - 1]) >> 31);
  uint64_t carry = sign & 1;
  OZAKI_UNROLL
  for (int l = 0; l < L; ++l) {  // |X|
    carry += x.at[l] ^ sign;
    x.at[l] = static_cast<uint32_t>(carry);
    carry >>= 32;
  }

  // The leading one goes to bit 31 of the top limb.
  int field = 1023 + 32 * L - 1 - scale;  // biased exponent of that bit
  for (int l = 1; l < L && x.at[L - 1] == 0; ++l) {
    OZAKI_UNROLL
    for (int i = L - 1; i > 0; --i) x.at[i] = x.at[i - 1];
    x.at[0] = 0;
    field -= 32;
  }
  if (x.at[L - 1] == 0) return 0;
  const int zeros = clz32(x.at[L - 1]);
  field -= zeros;
  const uint64_t next = uint64_t{x.at[L - 3]} << zeros;
  const uint64_t leading = ((uint64_t{x.at[L - 1]} << 32 | x.at[L - 2]) << zeros) | next >> 32;
  uint32_t rest = static_cast<uint32_t>(next);
  OZAKI_UNROLL
  for (int l = 0; l < L - 3; ++l) rest |= x.at[l];

  const uint32_t high = static_cast<uint32_t>(leading >> 32), low = static_cast<uint32_t>(leading);
  const uint64_t negative = uint64_t{sign & 0x80000000} << 32;
  if (field >= 1 && field < 2047) {
    // All but always. The leading one adds one to the exponent field, as a carry out of rounding
    // does.
    const uint32_t kept = low >> 11 | high << 21;
    const uint32_t dropped = low << 21 | (rest != 0 ? 1 : 0);
    const uint32_t upper = (high >> 11) + (static_cast<uint32_t>(field - 1) << 20);
    return negative |
           ((uint64_t{upper} << 32 | kept) + (dropped + (kept & 1) > 0x80000000 ? 1 : 0));
  }
  if (field >= 2047) return negative | kInfinityBits;
  // A subnormal keeps fewer bits.
  const int drop = 12 - field;
  if (drop > 64) return negative;
  const uint64_t kept = drop == 64 ? 0 : leading >> drop;
  const uint64_t dropped = leading << (64 - drop);
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  const bool up = dropped > kHalf || (dropped == kHalf && (rest != 0 || (kept & 1) != 0));
  return negative | (kept + (up ? 1 : 0));
}

}  // namespace ozaki
