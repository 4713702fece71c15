// What host and device code share: function markers and bit operations.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define OZAKI_HD __host__ __device__ __forceinline__
#else
#define OZAKI_HD inline __attribute__((always_inline))
#endif

#if defined(__CUDA_ARCH__)
#define OZAKI_UNROLL _Pragma("unroll")
#elif defined(__CUDACC__)
#define OZAKI_UNROLL  // the host pass knows neither pragma
#else
#define OZAKI_UNROLL _Pragma("GCC unroll 32")
#endif

// A long loop of little that device code is not to unroll: its registers are for others.
#if defined(__CUDA_ARCH__)
#define OZAKI_LOOP _Pragma("unroll 1")
#else
#define OZAKI_LOOP
#endif

namespace ozaki {

// Leading zeros of x != 0.
OZAKI_HD int clz64(uint64_t x) {
#if defined(__CUDA_ARCH__)
  return __clzll(static_cast<long long>(x));
#else
  return __builtin_clzll(x);
#endif
}

// Leading zeros of x != 0.
OZAKI_HD int clz32(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return __clz(static_cast<int>(x));
#else
  return __builtin_clz(x);
#endif
}

// Trailing zeros of x != 0.
OZAKI_HD int ctz64(uint64_t x) {
#if defined(__CUDA_ARCH__)
  return __ffsll(static_cast<long long>(x)) - 1;
#else
  return __builtin_ctzll(x);
#endif
}

OZAKI_HD int popcount64(uint64_t x) {
#if defined(__CUDA_ARCH__)
  return __popcll(x);
#else
  return __builtin_popcountll(x);
#endif
}

// The upper word of (high 2^32 + low) 2^shift, 0 <= shift < 32.
OZAKI_HD uint32_t shift_left(uint32_t high, uint32_t low, int shift) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_l(low, high, shift);
#else
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) << shift >> 32);
#endif
}

// The upper word of a b.
OZAKI_HD uint32_t multiply_high(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __umulhi(a, b);
#else
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
#endif
}

// c + the product of the 16-bit halves of a with the bytes of b's lower, or upper, half.
OZAKI_HD uint32_t dot2(uint32_t a, uint32_t b, bool upper, uint32_t c) {
#if defined(__CUDA_ARCH__)
  return upper ? __dp2a_hi(a, b, c) : __dp2a_lo(a, b, c);
#else
  const uint32_t bytes = upper ? b >> 16 : b;
  return c + (a & 0xffff) * (bytes & 255) + (a >> 16) * (bytes >> 8 & 255);
#endif
}

// 1 + floor(log2(x)) for x != 0.
OZAKI_HD int bit_length(uint64_t x) { return 64 - clz64(x); }

template <typename T>
OZAKI_HD T clamp(T x, T low, T high) {
  return x < low ? low : x > high ? high : x;
}

}  // namespace ozaki
