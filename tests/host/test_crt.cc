// Reconstruction for every number of moduli and rounding to float64, against slow limb arithmetic.
#include <algorithm>
#include <cmath>

#include "check.h"
#include "common/crt.h"

using namespace ozaki;
using namespace ozaki::test;

// A sign and magnitude; limbs lowest first.
struct Big {
  bool negative = false;
  uint32_t limb[6] = {};

  bool bit(int i) const { return i >= 0 && i < 192 && (limb[i / 32] >> (i % 32) & 1); }
  int length() const {
    int n = 192;
    while (n > 0 && !bit(n - 1)) --n;
    return n;
  }
  bool below(const Big& other) const {
    for (int i = 5; i >= 0; --i)
      if (limb[i] != other.limb[i]) return limb[i] < other.limb[i];
    return false;
  }
  void multiply(uint32_t factor) {
    uint64_t carry = 0;
    for (uint32_t& x : limb) {
      carry += uint64_t{x} * factor;
      x = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
  }
  uint32_t divide(uint32_t divisor) {
    uint64_t rest = 0;
    for (int i = 5; i >= 0; --i) {
      rest = rest << 32 | limb[i];
      limb[i] = static_cast<uint32_t>(rest / divisor);
      rest %= divisor;
    }
    return static_cast<uint32_t>(rest);
  }
};

// A magnitude of at most `limit`, of any length.
static Big random_big(const Big& limit) {
  for (;;) {
    Big x;
    for (int i = 0, bits = 1 + static_cast<int>(rng() % limit.length()); bits > 0; ++i, bits -= 32)
      x.limb[i] = static_cast<uint32_t>(rng()) >> (bits < 32 ? 32 - bits : 0);
    if (!limit.below(x)) return x;
  }
}

template <int L>
static Limbs<L> twos_complement(const Big& x) {
  Limbs<L> out;
  uint64_t carry = x.negative;
  for (int l = 0; l < L; ++l) {
    carry += x.negative ? ~x.limb[l] : x.limb[l];
    out.at[l] = static_cast<uint32_t>(carry);
    carry >>= 32;
  }
  return out;
}

// X 2^-scale rounded half to even, bit by bit.
static uint64_t slow_round(const Big& x, int scale) {
  const int length = x.length();
  if (length == 0) return 0;
  const int lowest = std::max(length - 53, scale - 1074);  // bit index of the last place kept
  uint64_t kept = 0;
  for (int i = 52; i >= 0; --i) kept = kept << 1 | x.bit(lowest + i);
  bool sticky = false;
  for (int i = 0; i < std::min(lowest - 1, 192); ++i) sticky |= x.bit(i);
  if (x.bit(lowest - 1) && (sticky || kept % 2 == 1)) ++kept;
  const uint64_t bits = to_bits(std::ldexp(static_cast<double>(kept), lowest - scale));
  return x.negative ? bits | kSignBit : bits;
}

template <int N>
static void check_integer(const Big& x) {
  constexpr int L = Crt<N>::kLimbs;
  uint32_t v[N];
  for (int i = 0; i < N; ++i) {
    const uint32_t p = kModuli[i].p;
    uint32_t cofactor = 1, inverse = 1;
    for (int j = 0; j < N; ++j) cofactor = j == i ? cofactor : cofactor * kModuli[j].p % p;
    while (cofactor * inverse % p != 1) ++inverse;
    Big copy = x;
    const uint32_t magnitude = copy.divide(p);
    v[i] = (x.negative ? p - magnitude : magnitude) * inverse % p;
    if (v[i] == 0 && p < 256 && rng() % 2) v[i] = p;  // a residue may be p itself
  }
  uint32_t y[Crt<N>::kGroups];
  uint32_t pairs[(N + 1) / 2] = {};
  const bool upper = rng() % 2;
  for (int i = 0; i < N; ++i) pairs[i / 2] |= (v[i] & 255) << (8 * (i % 2) + (upper ? 16 : 0));
  for (uint32_t& pair : pairs) pair |= static_cast<uint32_t>(rng()) & (upper ? 0xffff : 0xffff0000);
  partial_crt<N>(pairs, upper, y);
  if (rng() % 2) {  // sums of residues are up to five times p
    for (int i = 0; i < N; ++i) y[i / 3] += rng() % 5 * kModuli[i].p * kCrt<N>.multiplier[i];
  }
  const Limbs<L> found = reconstruct<N>(y), expected = twos_complement<L>(x);
  for (int l = 0; l < L; ++l)
    CHECK(found.at[l] == expected.at[l], "N %d limb %d: %08x expected %08x", N, l, found.at[l],
          expected.at[l]);
}

template <int N>
static void test_reconstruct() {
  Big limit;  // P (1/2 - 2^-8)
  limit.limb[0] = 127;
  for (int i = 0; i < N; ++i) limit.multiply(kModuli[i].p);
  limit.divide(256);
  for (int i = 0; i < 4000; ++i) {
    Big x = i < 2 ? limit : random_big(limit);
    if (i >= 2 && i < 8) {
      x = Big();
      x.limb[0] = static_cast<uint32_t>(i / 2 - 1);
    }
    x.negative = i % 2 == 1 && x.length() > 0;
    check_integer<N>(x);
  }
  if constexpr (N < kMaxModuli) test_reconstruct<N + 1>();
}

template <int L>
static void test_round() {
  Big limit;  // every |X| < 2^(32 L - 1)
  for (int l = 0; l < L; ++l) limit.limb[l] = l == L - 1 ? 0x7fffffff : 0xffffffff;
  for (int i = 0; i < 200000; ++i) {
    Big x = random_big(limit);
    const int length = x.length();
    const int scales[] = {static_cast<int>(rng() % 4000) - 2000,             // any
                          length + 1021 + static_cast<int>(rng() % 58),      // subnormal results
                          length - 1024 + static_cast<int>(rng() % 4) - 2};  // around overflow
    const int scale = scales[i % 3];
    // ties and their neighbours: keep the leading bits, then 10..0 or 01..1 below
    const int last = std::max(length - 53, scale - 1074);
    if (i % 2 && last > 0 && last <= length) {
      const bool down = rng() % 3 == 0, exact = rng() % 2;
      for (int b = 0; b < last; ++b) {
        const bool set = b == last - 1 ? !down : down || (!exact && b == 0);
        x.limb[b / 32] = (x.limb[b / 32] & ~(1u << b % 32)) | static_cast<uint32_t>(set) << b % 32;
      }
      if (rng() % 4 == 0)  // all ones above: rounding carries into the exponent
        for (int b = last; b < length; ++b) x.limb[b / 32] |= 1u << b % 32;
    }
    x.negative = rng() % 2 && x.length() > 0;
    const Limbs<L> number = twos_complement<L>(x);
    const uint64_t found = round_to_float64(number, scale), expected = slow_round(x, scale);
    uint64_t normal;
    if (round_to_normal(number, scale, normal)) {
      CHECK(normal == expected, "L %d length %d scale %d: %016" PRIx64 " expected %016" PRIx64, L,
            x.length(), scale, normal, expected);
    } else {
      const uint64_t magnitude = magnitude_bits(expected);
      CHECK(!is_finite(expected) || magnitude <= uint64_t{1} << 52,
            "L %d length %d scale %d: %016" PRIx64 " is a normal number", L, x.length(), scale,
            expected);
    }
    CHECK(found == expected, "L %d length %d scale %d: %016" PRIx64 " expected %016" PRIx64, L,
          x.length(), scale, found, expected);
  }
}

// X + delta
template <int L>
static Limbs<L> near(Limbs<L> x, int delta) {
  int64_t carry = delta;
  for (int l = 0; l < L; ++l) {
    carry += x.at[l];
    x.at[l] = static_cast<uint32_t>(carry);
    carry >>= 32;
  }
  return x;
}

// By float64 units the same bits, of all lengths: sums of up to three powers of two and what lies
// around them, where ties are.
template <int L>
static void test_float64_units() {
  const Limbs<L> zero = {};
  const auto check = [&](const Limbs<L>& first, const Limbs<L>& second, int scale) {
    const Limbs<L> x[] = {first, second};
    const int scales[] = {scale, scale};
    uint64_t found[2], expected[2];
    const bool all = round_by_float64_units(x, scales, found);
    bool all_expected = true;
    for (int e = 0; e < 2; ++e) {
      expected[e] = round_to_float64(x[e], scale);
      const bool is_normal = is_finite(expected[e]) &&
                             magnitude_bits(expected[e]) > uint64_t{1} << 52;  // 2^-1022: of less
      all_expected &= is_normal || memcmp(&x[e], &zero, sizeof zero) == 0;
    }
    CHECK(all || !all_expected, "L %d scale %d: normal numbers are left", L, scale);
    for (int e = 0; e < 2 && all; ++e) {
      CHECK(found[e] == expected[e], "L %d scale %d top %08x: %016" PRIx64 " expected %016" PRIx64,
            L, scale, x[e].at[L - 1], found[e], expected[e]);
    }
  };
  for (int i = 0; i < 32 * L - 1; ++i) {
    const int scales[] = {0, 1000, -900, i + 1022, i + 1023, i - 1023, i - 1024};
    for (int j = -1; j < i; ++j) {
      for (const int h : {-1, 0, j / 2, j - 53, j - 1, i - 53, i - 54, i - 55, i - 64, i - 65}) {
        Big big;
        for (const int bit : {i, j, h}) {
          if (bit >= 0) big.limb[bit / 32] |= 1u << bit % 32;
        }
        for (const bool negative : {false, true}) {
          big.negative = negative;
          const Limbs<L> x = twos_complement<L>(big);
          const int scale = scales[rng() % 7];
          for (const int delta : {-2, -1, 0, 1, 2}) {
            if (i < 3 && delta != 0) continue;
            check(near(x, delta), rng() % 2 != 0 ? x : zero, scale);
          }
        }
      }
    }
  }
  Big limit;
  for (int l = 0; l < L; ++l) limit.limb[l] = l == L - 1 ? 0x7fffffff : 0xffffffff;
  for (int sample = 0; sample < 100000; ++sample) {
    Limbs<L> x[2];
    for (Limbs<L>& of : x) {
      Big big = random_big(limit);
      // A run of equal digits: ties, and carries through all of them.
      const int first = static_cast<int>(rng() % (32 * L - 1)),
                length = static_cast<int>(rng() % 70);
      for (int b = first; b < std::min(first + length, 32 * L - 1); ++b) {
        big.limb[b / 32] &= ~(1u << b % 32);
        big.limb[b / 32] |= static_cast<uint32_t>(sample % 2) << b % 32;
      }
      big.negative = rng() % 2 != 0 && big.length() > 0;
      of = twos_complement<L>(big);
    }
    check(x[0], x[1], static_cast<int>(rng() % 2200) - 1000);
  }
}

int main() {
  test_reconstruct<kMinModuli>();
  test_round<3>();
  test_round<4>();
  test_round<5>();
  test_float64_units<3>();
  test_float64_units<4>();
  test_float64_units<5>();
  return result("crt");
}
