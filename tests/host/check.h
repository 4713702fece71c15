// A minimal test harness: failed checks are printed and make main fail.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <random>

namespace ozaki::test {

__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;

inline int failures = 0;

// CHECK(condition, "format", values...) prints the first failures of a run.
#define CHECK(condition, ...)                                     \
  do {                                                            \
    if (!(condition) && ++ozaki::test::failures <= 20) {          \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                   \
      std::printf("\n");                                          \
    }                                                             \
  } while (0)

inline int result(const char* name) {
  std::printf("%s: %s (%d failed)\n", name, failures ? "FAILED" : "ok", failures);
  return failures != 0;
}

inline std::mt19937_64 rng(20250);

// A random integer of a random length of up to `bits` bits.
inline uint64_t random_bits(int bits) {
  const int length = static_cast<int>(rng() % static_cast<unsigned>(bits + 1));
  return length == 0 ? 0 : rng() >> (64 - length);
}

// A random float64 as bits: any sign, exponents near `field`, now and then a short significand.
inline uint64_t random_float64(int field, int spread) {
  int e = field + static_cast<int>(rng() % static_cast<unsigned>(2 * spread + 1)) - spread;
  e = e < 0 ? 0 : e > 2046 ? 2046 : e;
  uint64_t fraction = rng() >> 12;
  if (rng() % 4 == 0) fraction &= ~uint64_t{0} << (rng() % 53);
  return (rng() & uint64_t{1} << 63) | static_cast<uint64_t>(e) << 52 | fraction;
}

}  // namespace ozaki::test
