// A' = RNE(a 2^mu) as an integer, by shifting the significand: 2^mu itself may not be a float64.
#pragma once

#include "common/float64.h"
#include "common/residue.h"

namespace ozaki {

// Moduli up to which |A'| <= H < 2^63.
constexpr int kMaxNarrowModuli = 16;

// x / 2^shift rounded half to even, for x < 2^53 and 0 <= shift <= 63.
OZAKI_HD uint64_t shift_right_half_even(uint64_t x, int shift) {
  const uint64_t doubled = x << 1;
  const uint64_t kept = doubled >> shift;  // the rounded integer and the bit below it
  const uint64_t rest = doubled - (kept << shift);
  return (kept >> 1) + (kept & ((kept >> 1) | (rest != 0 ? 1 : 0)) & 1);
}

// a 2^mu for finite a, |a 2^mu| < 2^63 (N <= kMaxNarrowModuli).
OZAKI_HD int64_t quantize_narrow(uint64_t bits, int32_t mu) {
#if defined(__CUDA_ARCH__)
  // No factor is above 2^10: one shift of 2^10 significand to the right does all. For a subnormal,
  // whose significand may be short, mu <= -lsb and lsb >= -1074 say so: it is never shifted left.
  // A shift by 64 or more, which a negative one is too, gives 0: PTX says so, C++ does not.
  const uint32_t upper = static_cast<uint32_t>(bits >> 32) & 0x7fffffff;
  const int field = max(static_cast<int>(upper >> 20) - 1, 0);  // subnormals included
  const uint64_t scaled =
      (uint64_t{upper - (static_cast<uint32_t>(field) << 20)} << 32 | static_cast<uint32_t>(bits))
      << 10;
  const int shift = 10 + 1074 - mu - field;
  uint64_t half, kept, magnitude;  // half a unit, less one
  asm("shr.u64 %0, %1, %2;" : "=l"(half) : "l"(~uint64_t{0} >> 1), "r"(64 - shift));
  asm("shr.u64 %0, %1, %2;" : "=l"(kept) : "l"(scaled), "r"(shift));
  asm("shr.u64 %0, %1, %2;" : "=l"(magnitude) : "l"(scaled + half + (kept & 1)), "r"(shift));
#else
  const int shift = exponent(bits) + mu;
  const int left = clamp(shift, 0, 63), right = clamp(-shift, 0, 63);
  const uint64_t magnitude = shift_right_half_even(significand(bits), right) << left;
#endif
  const uint64_t sign = 0 - (bits >> 63);
  return static_cast<int64_t>((magnitude ^ sign) - sign);
}

// a 2^mu for finite a, |a 2^mu| < 2^95.
OZAKI_HD Int96 quantize_wide(uint64_t bits, int32_t mu) {
  const int shift = exponent(bits) + mu;
  const int left = clamp(shift, 0, 94), right = clamp(-shift, 0, 63);
  const uint64_t rounded = shift_right_half_even(significand(bits), right);
  uint64_t high = left < 32 ? rounded >> (32 - left) : rounded << (left - 32);
  uint32_t low = left < 32 ? static_cast<uint32_t>(rounded << left) : 0;
  if (is_negative(bits)) {
    low = 0 - low;
    high = ~high + (low == 0 ? 1 : 0);
  }
  return {static_cast<int64_t>(high), low};
}

}  // namespace ozaki
