// Rounding to integers and residues, in 128-bit integers; mod p exhaustively.
#include <algorithm>

#include "check.h"
#include "common/quantize.h"
#include "common/tables.h"

using namespace ozaki;
using namespace ozaki::test;

static uint64_t slow_half_even(uint64_t x, int shift) {
  const uint128 unit = uint128{1} << shift, whole = x >> (shift < 63 ? shift : 63);
  const uint128 twice = 2 * (x - whole * unit);
  return static_cast<uint64_t>(whole + (twice > unit || (twice == unit && whole % 2 == 1)));
}

static uint32_t slow_mod(int128 x, uint32_t p) {
  const int128 r = x % static_cast<int128>(p);
  return static_cast<uint32_t>(r < 0 ? r + p : r);
}

static void test_half_even() {
  for (int shift = 0; shift <= 63; ++shift) {
    const uint64_t unit = uint64_t{1} << shift, top = (uint64_t{1} << 53) - 1;
    for (int i = 0; i < 4000; ++i) {
      // around multiples of half a unit, and anything
      const uint64_t half = unit / 2 * random_bits(shift < 54 ? 55 - shift : 1) + rng() % 3 - 1;
      const uint64_t x = (i % 2 ? half : random_bits(53)) & top;
      CHECK(shift_right_half_even(x, shift) == slow_half_even(x, shift), "%" PRIu64 " >> %d", x,
            shift);
    }
    CHECK(shift_right_half_even(top, shift) == slow_half_even(top, shift), "top >> %d", shift);
  }
}

static int128 value(Int96 x) { return (static_cast<int128>(x.high) * (int128{1} << 32)) + x.low; }

static void test_quantize() {
  for (int i = 0; i < 400000; ++i) {
    const uint64_t a = random_float64(i % 4 == 0 ? 0 : 1023, i % 3 ? 4 : 1000);
    const bool wide = i % 2;
    const int longest = wide ? 79 : 62;
    // |a 2^mu| < 2^longest, or far below one
    const int mu = (i % 5 ? longest - static_cast<int>(rng() % 140) : -1200) - (exponent(a) + 53);
    const int shift = exponent(a) + mu;
    const int128 magnitude =
        shift >= 0 ? static_cast<int128>(significand(a)) << shift
                   : static_cast<int128>(slow_half_even(significand(a), std::min(-shift, 60)));
    const int128 expected = is_negative(a) ? -magnitude : magnitude;
    const int128 found = wide ? value(quantize_wide(a, mu)) : quantize_narrow(a, mu);
    CHECK(found == expected, "bits %" PRIx64 " mu %d wide %d", a, mu, wide);
    CHECK(wide || quantize_by_shift(a, mu) == expected, "bits %" PRIx64 " mu %d", a, mu);
  }
  CHECK(quantize_narrow(kSignBit, 1074 + 62) == 0 && value(quantize_wide(0, 1074 + 77)) == 0,
        "zero");
  CHECK(quantize_narrow(1, 1074) == 1 && quantize_narrow(kSignBit | 1, 1074) == -1, "subnormal");
  for (const uint64_t a : {to_bits(0.0), to_bits(-1.5), kNaNBits, kInfinityBits, kSignBit | 1}) {
    CHECK(quantize_by_shift(a, kScaleZero) == 0, "bits %" PRIx64, a);
  }
}

static void test_mod_p() {
  for (const Modulus& m : kModuli.at) {
    for (uint32_t v = 0; v < 1u << 20; ++v) {
      const uint32_t r = mod_p_float(m.float_zero + v, m) & 255;
      CHECK(mod_p(v, m) == v % m.p, "%u mod %u", v, m.p);
      CHECK(r % m.p == v % m.p && r <= m.p, "float form: %u mod %u gives %u", v, m.p, r);
    }
    for (uint32_t i = 0; i < 1000; ++i) {
      const uint32_t multiple = (1u << 31) - 1 - ((1u << 31) - 1) % m.p;
      for (const uint32_t v :
           {(1u << 31) - 1 - i, multiple - i, static_cast<uint32_t>(random_bits(31))})
        CHECK(mod_p(v, m) == v % m.p, "%u mod %u", v, m.p);
    }
  }
}

template <int kDigits, typename Integer>
static void check_residues(Integer x, int128 exact) {
  for (const Modulus& m : kModuli.at) {
    const uint32_t expected = slow_mod(exact, m.p), bytes = residue_float(x, m) & 255;
    uint32_t digits[kDigits];
    to_digits(x, digits);
    CHECK(digits_mod_p(digits, m) == expected, "digits: high %" PRId64 " mod %u",
          static_cast<int64_t>(exact >> 32), m.p);
    CHECK(bytes % m.p == expected && bytes <= m.p, "bytes: high %" PRId64 " mod %u",
          static_cast<int64_t>(exact >> 32), m.p);
  }
}

static void test_residues() {
  for (int i = 0; i < 20000; ++i) {
    const int64_t narrow = i == 0   ? INT64_MAX
                           : i == 1 ? INT64_MIN
                                    : static_cast<int64_t>(random_bits(63)) * (i % 2 ? 1 : -1);
    check_residues<3>(narrow, narrow);
    const int64_t top = int64_t{1} << 47;
    const int64_t high = i == 0   ? top - 1
                         : i == 1 ? -top
                                  : static_cast<int64_t>(random_bits(47)) * (i % 2 ? 1 : -1);
    const Int96 wide = {high, i == 0 ? UINT32_MAX : i == 1 ? 0 : static_cast<uint32_t>(rng())};
    check_residues<4>(wide, value(wide));
  }
}

template <int N>
static void test_epilogue() {
  for (int i = 0; i < N; ++i) {
    const Modulus& m = kModuli[i];
    uint32_t cofactor = 1;  // P / p mod p
    for (int j = 0; j < N; ++j) cofactor = j == i ? cofactor : cofactor * kModuli[j].p % m.p;
    CHECK(kInverses[N][i] * cofactor % m.p == 1, "N %d p %u", N, m.p);
    for (int s = 0; s < 300; ++s) {
      const uint32_t x = s == 0 ? UINT32_MAX : static_cast<uint32_t>(rng());
      const uint32_t weights = kCrt<N>.epilogue_weights[i];
      const uint32_t v = epilogue(x, weights, m), bytes = epilogue_float(x, weights, m) & 255;
      CHECK(v * cofactor % m.p == x % m.p && v < m.p, "N %d p %u x %u", N, m.p, x);
      CHECK(bytes % m.p == v && bytes <= m.p, "N %d p %u x %u", N, m.p, x);
    }
  }
  if constexpr (N < kMaxModuli) test_epilogue<N + 1>();
}

int main() {
  test_half_even();
  test_quantize();
  test_mod_p();
  test_residues();
  test_epilogue<kMinModuli>();
  return result("quantize");
}
