// float64 values as bit patterns. Nothing here computes with a float64: XLA's CPU threads flush
// subnormals to zero in floating-point arithmetic, and consumer GPUs run it at 1/64 rate.
#pragma once

#include "common/hd.h"

namespace ozaki {

constexpr uint64_t kSignBit = uint64_t{1} << 63;
constexpr uint64_t kInfinityBits = uint64_t{0x7ff} << 52;
constexpr uint64_t kNaNBits = uint64_t{0xfff} << 51;

OZAKI_HD uint64_t magnitude_bits(uint64_t bits) { return bits & ~kSignBit; }
OZAKI_HD bool is_negative(uint64_t bits) { return bits >> 63; }
OZAKI_HD bool is_zero(uint64_t bits) { return magnitude_bits(bits) == 0; }
OZAKI_HD bool is_finite(uint64_t bits) { return magnitude_bits(bits) < kInfinityBits; }
OZAKI_HD bool is_inf(uint64_t bits) { return magnitude_bits(bits) == kInfinityBits; }
OZAKI_HD bool is_nan(uint64_t bits) { return magnitude_bits(bits) > kInfinityBits; }

// A finite value is (-1)^negative significand 2^exponent; the significand of a subnormal is below
// 2^52, every other one is in [2^52, 2^53).
OZAKI_HD uint64_t significand(uint64_t bits) {
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  return (bits & kInfinityBits) != 0 ? fraction | uint64_t{1} << 52 : fraction;
}

OZAKI_HD int exponent(uint64_t bits) {
  const int field = static_cast<int>(bits >> 52) & 0x7ff;
  return (field == 0 ? 1 : field) - 1075;
}

// e(a) = floor(log2|a|) + 1, for finite a != 0.
OZAKI_HD int magnitude_exponent(uint64_t bits) {
  return exponent(bits) + bit_length(significand(bits));
}

// The exponent of the lowest set bit, a = odd * 2^lowest_bit, for finite a != 0.
OZAKI_HD int lowest_bit(uint64_t bits) { return exponent(bits) + ctz64(significand(bits)); }

OZAKI_HD uint64_t to_bits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

OZAKI_HD uint64_t load_bits(const double* x) {
  uint64_t bits;
  memcpy(&bits, x, sizeof bits);
  return bits;
}

// The words of a float64: a device has it in two registers, which its compiler loses sight of
// where they go through 64 bits.
OZAKI_HD double of_words(uint32_t upper, uint32_t lower) {
#if defined(__CUDA_ARCH__)
  return __hiloint2double(static_cast<int>(upper), static_cast<int>(lower));
#else
  const uint64_t bits = uint64_t{upper} << 32 | lower;
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
#endif
}
OZAKI_HD uint32_t upper_word(double x) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__double2hiint(x));
#else
  return static_cast<uint32_t>(to_bits(x) >> 32);
#endif
}
OZAKI_HD uint32_t lower_word(double x) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__double2loint(x));
#else
  return static_cast<uint32_t>(to_bits(x));
#endif
}

}  // namespace ozaki
