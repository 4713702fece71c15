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

// 1 + floor(log2(x)) for x != 0.
OZAKI_HD int bit_length(uint64_t x) { return 64 - clz64(x); }

template <typename T>
OZAKI_HD T clamp(T x, T low, T high) {
  return x < low ? low : x > high ? high : x;
}

}  // namespace ozaki
