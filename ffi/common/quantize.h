// A' = RNE(a 2^mu) as an integer. 2^mu itself may not be a float64.
#pragma once

#include "common/float64.h"
#include "common/float64_units.h"
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

// A scale that sends every element to zero, and that exponents can be added to.
constexpr int32_t kScaleZero = -(1 << 20);

// x / 2^shift rounded down; 0 where shift is negative or above 63.
OZAKI_HD uint64_t shift_right(uint64_t x, int shift) {
#if defined(__CUDA_ARCH__)
  uint64_t shifted;  // PTX says so of unsigned shifts, C++ does not
  asm("shr.u64 %0, %1, %2;" : "=l"(shifted) : "l"(x), "r"(shift));
  return shifted;
#else
  return shift < 0 || shift > 63 ? 0 : x >> shift;
#endif
}

// a 2^mu for finite a, |a 2^mu| < 2^63 (N <= kMaxNarrowModuli), by one shift to the right, since no
// factor is above 2^10: of 2^10 significand. For a subnormal, whose significand may be short, mu <=
// -lsb and lsb >= -1074 say so: it is never shifted left.
OZAKI_HD int64_t quantize_by_shift(uint64_t bits, int32_t mu) {
  const uint32_t upper = static_cast<uint32_t>(bits >> 32) & 0x7fffffff;
  int field = static_cast<int>(upper >> 20) - 1;  // subnormals included
  field = field < 0 ? 0 : field;
  const uint64_t scaled =
      (uint64_t{upper - (static_cast<uint32_t>(field) << 20)} << 32 | static_cast<uint32_t>(bits))
      << 10;
  const int shift = 10 + 1074 - mu - field;
  const uint64_t half = shift_right(~uint64_t{0} >> 1, 64 - shift);  // of a unit, less one
  const uint64_t odd = shift_right(scaled, shift) & 1;
  const uint64_t magnitude = shift_right(scaled + half + odd, shift);
  const uint64_t sign = 0 - (bits >> 63);
  return static_cast<int64_t>((magnitude ^ sign) - sign);
}

// The same in the form that suits the device. kScaleZero sends non-finite elements to zero, too.
OZAKI_HD int64_t quantize_narrow(uint64_t bits, int32_t mu) {
#if OZAKI_FULL_RATE_FLOAT64
  // In two factors, since 2^mu may not be a float64. Only products that round to zero underflow.
  const bool zero = mu == kScaleZero;
  const int exponent = zero ? 0 : mu, first = exponent >> 1;
  const auto power = [](int e) { return __hiloint2double((e + 1023) << 20, 0); };
  const double a =
      __hiloint2double(zero ? 0 : static_cast<int>(bits >> 32), static_cast<int>(bits));
  return __double2ll_rn(a * power(first) * power(exponent - first));
#elif defined(__CUDA_ARCH__)
  return quantize_by_shift(bits, mu);
#else
  const int shift = exponent(bits) + mu;
  const int left = clamp(shift, 0, 63), right = clamp(-shift, 0, 63);
  const uint64_t magnitude = shift_right_half_even(significand(bits), right) << left;
  const uint64_t sign = 0 - (bits >> 63);
  return static_cast<int64_t>((magnitude ^ sign) - sign);
#endif
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
