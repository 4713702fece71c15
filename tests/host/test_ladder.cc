// The arithmetic of certified products: planes, magnitude products by every instruction set, and
// sums of products against 128-bit integers.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <utility>
#include <vector>

#include "check.h"
#include "common/accumulate.h"
#include "common/certificate.h"
#include "common/chains.h"
#include "common/occupancy.h"
#include "common/planes.h"
#include "cpu/chain_sum.h"
#include "cpu/mma_kernels.h"

using namespace ozaki;
using namespace ozaki::test;

static void test_planes() {
  for (int i = 0; i < 200000; ++i) {
    const uint64_t a = magnitude_bits(random_float64(i % 2 ? 0 : 1000, i % 3 ? 3 : 900));
    if (a == 0) continue;
    const int emax = magnitude_exponent(a) + static_cast<int>(rng() % (i % 2 ? 60 : 3));
    for (const int bits : {kCoarseBits, kFineBits}) {
      const int shift = exponent(a) + bits - emax;
      const uint64_t s = significand(a);
      const uint64_t expected = shift >= 0 ? s << shift : shift > -64 ? s >> -shift : 0;
      CHECK(plane_magnitude(a, emax, bits) == expected, "bits %" PRIx64 " emax %d", a, emax);
      CHECK(expected < uint64_t{1} << bits, "bits %" PRIx64 " emax %d", a, emax);
    }
  }
  CHECK(plane_magnitude(0, 5, 14) == 0 && plane_magnitude(0, -1060, 14) == 0, "zero");
}

static void test_magnitude(int64_t m, int64_t n, int64_t k, bool top) {
  const MmaSizes sizes = {2, 1, m, n, padded_k(k)};
  const auto bytes = [&](int64_t rows) {
    std::vector<uint8_t> out(sizes.batch * rows * sizes.kp);
    for (int64_t row = 0; row < sizes.batch * rows; ++row)
      for (int64_t h = 0; h < k; ++h)
        out[row * sizes.kp + h] = top ? 255 : static_cast<uint8_t>(rng());
    return out;
  };
  const std::vector<uint8_t> lhs = bytes(m), rhs = bytes(n);
  for (const MmaKernel* kernel : mma_kernels()) {
    if (!kernel->supported()) continue;
    std::vector<int32_t> sums(sizes.batch * m * padded(n));
    magnitude(*kernel, lhs.data(), rhs.data(), sums.data(), sizes, Flagged{}, Scheduler());
    for (int64_t row = 0; row < sizes.batch * m; ++row)
      for (int64_t j = 0; j < n; ++j) {
        int64_t expected = 0;
        const uint8_t *a = &lhs[row * sizes.kp], *b = &rhs[(row / m * n + j) * sizes.kp];
        for (int64_t h = 0; h < k; ++h) expected += a[h] * b[h];
        const int32_t sum = sums[row * padded(n) + j];
        CHECK(sum == expected, "%s: m %" PRId64 " n %" PRId64 " k %" PRId64 ": %d", kernel->name, m,
              n, k, sum);
      }
  }
}

// Products of integers of up to 40 bits whose exact sum fits 128 bits.
static void test_sums() {
  for (int i = 0; i < 20000; ++i) {
    const int k = 1 + static_cast<int>(rng() % 9), exponent = static_cast<int>(rng() % 900) - 450;
    int128 exact = 0;
    int top = INT32_MIN;
    std::vector<std::pair<Normalised, Normalised>> terms;
    int64_t digits[kDigits] = {};
    for (int h = 0; h < k; ++h) {
      int64_t x = static_cast<int64_t>(random_bits(40)), y = static_cast<int64_t>(random_bits(40));
      if (rng() % 2) x = -x;
      if (x == 0 || y == 0) continue;
      exact += int128{x} * y;
      const double a = std::ldexp(static_cast<double>(x), exponent);
      terms.push_back({normalise(to_bits(a)), normalise(to_bits(static_cast<double>(y)))});
      top = std::max(top, terms.back().first.exponent + terms.back().second.exponent);
    }
    WindowSum sum;
    for (const auto& [a, b] : terms) {
      sum.add(a, b, top);
      add_exactly(a, b, [&](int q, int64_t piece) { digits[q] += piece; });
    }
    const uint128 bits = static_cast<uint128>(exact);
    const Limbs<4> limbs = {{static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32),
                             static_cast<uint32_t>(bits >> 64), static_cast<uint32_t>(bits >> 96)}};
    const uint64_t expected = round_to_float64(limbs, -exponent);
    CHECK(round_digits(digits) == expected, "k %d exponent %d", k, exponent);
    if (!terms.empty() && sum.decides(top, k))
      CHECK(sum.rounded(top) == expected, "k %d exponent %d", k, exponent);
  }
}

// Sums over the whole range: what is far below the leading bits decides ties.
static void test_range() {
  const auto product = [](std::initializer_list<std::pair<double, double>> terms) {
    int64_t digits[kDigits] = {};
    for (const auto& [a, b] : terms)
      add_exactly(normalise(to_bits(a)), normalise(to_bits(b)),
                  [&](int q, int64_t piece) { digits[q] += piece; });
    return round_digits(digits);
  };
  const double tiny = std::ldexp(1.0, -1074), large = std::ldexp(1.0, 1023);
  const double half = std::ldexp(1.0, -53);
  CHECK(product({{1, 1}, {half, 1}}) == to_bits(1.0), "tie to even");
  CHECK(product({{1, 1}, {half, 1}, {tiny, tiny}}) == to_bits(1 + 2 * half), "above a tie");
  CHECK(product({{1, 1}, {half, 1}, {-tiny, tiny}}) == to_bits(1.0), "below a tie");
  CHECK(product({{large, large}, {-large, large}, {tiny, 3}}) == 3, "cancelled");
  CHECK(product({{large, -large}}) == (kInfinityBits | kSignBit), "overflow");
  CHECK(product({{tiny, -tiny}}) == kSignBit, "underflow");
  CHECK(product({{large, 1}, {-large, 1}}) == 0, "zero");
}

// Sums of chains on a thread that rounds up and, where that can be asked for, flushes subnormals.
static void test_chains() {
  const int64_t m = 3, n = 2, k = 1100, group = 16;
  std::vector<double> a(m * k), b(n * k), c(m * n);
  for (double& x : a) x = std::ldexp(random_bits(53), static_cast<int>(rng() % 900) - 1000);
  for (double& x : b) x = std::ldexp(random_bits(53), static_cast<int>(rng() % 40) - 60);
  a[0] = std::ldexp(3, -1073), b[0] = std::ldexp(1, 1000);  // a product of a subnormal
  std::fill_n(a.begin() + k, k, 0.0);                       // half a place, and a subnormal above
  for (int64_t h = 0; h < k; ++h) b[k + h] = 1;
  a[k] = std::ldexp(1, -960), a[k + 8] = std::ldexp(1, -1013), a[k + 9] = std::ldexp(1, -1060);
  std::fill_n(a.begin() + 2 * k, k, 0.0);
  std::vector<double> expected;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double total = 0, of_group = 0;
      for (int64_t h = 0; h < k; h += kChain) {
        double chain = 0;
        for (int64_t e = h; e < std::min(k, h + kChain); ++e)
          chain = std::fma(a[i * k + e], b[j * k + e], chain);
        if (h % (group * kChain) == 0) total += of_group, of_group = 0;
        of_group += chain;
      }
      expected.push_back(total + of_group);
    }
  CHECK(expected[3] == std::ldexp(1, -960) + std::ldexp(1, -1012), "above a tie");

  const std::vector<int64_t> stats(m * kStatsFields, -1);  // every part may be occupied
  const std::vector<uint8_t> rung(m * padded(n), 4);
  const std::vector<uint32_t> tiles(1, 1 << 4);
  const Layout rows = {1, m, k, 0, k, 1}, columns = {1, n, k, 0, k, 1};
  const Selection selection = {rung.data(), {tiles.data(), m, n, 1 << 4}};
  std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
  const unsigned control = __builtin_ia32_stmxcsr() | 0x8040;
  __builtin_ia32_ldmxcsr(control);
#endif
  chain_sum({a.data(), rows}, {b.data(), columns}, stats.data(), stats.data(), selection, group,
            c.data(), Scheduler());
#if defined(__x86_64__)
  const unsigned after = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(control & ~0x8040u);
  CHECK((after & 0xffc0) == (control & 0xffc0), "%x, was %x", after, control);
#endif
  CHECK(std::fegetround() == FE_UPWARD, "the rounding is restored");
  std::fesetround(FE_TONEAREST);
  for (int64_t i = 0; i < m * n; ++i) {
    const uint64_t bits = to_bits(expected[i]), found = to_bits(c[i]);
    CHECK(found == (is_taken(bits) ? bits : kLeftToWindow), "%" PRId64 ": %a expected %a", i, c[i],
          expected[i]);
  }
}

// What rows of any data may bring, and so that the ratios of two outputs are often close.
static RowBound random_bound(bool extreme) {
  const auto power = [](int most) {
    return power_of_two(static_cast<int>(rng() % (2u * most)) - most);
  };
  const float rounded = rng() % 4 == 0 ? 0 : static_cast<float>(1 + random_bits(12));
  return {power(extreme ? 90 : 3) + static_cast<float>(1 + rng() % 4096) * 0.125f,
          power(extreme ? 90 : 3) + 0.125f, power(extreme ? 150 : 3), rounded};
}

// What is below another output's ratio is certified, with a smaller ratio.
static void test_below() {
  int64_t below = 0, above = 0;
  for (int i = 0; i < 1000000; ++i) {
    const bool extreme = i % 2 != 0;
    const float tau_half = power_of_two(static_cast<int>(rng() % 255) - (extreme ? 127 : 20));
    Certificate found[2];
    RowBound row[2], column[2];
    float magnitude[2];
    for (int e = 0; e < 2; ++e) {
      row[e] = random_bound(extreme), column[e] = random_bound(extreme);
      magnitude[e] = static_cast<float>(static_cast<int32_t>(random_bits(31)));
      found[e] = certificate(row[e], column[e], magnitude[e], tau_half);
    }
    if (!found[0].holds) continue;
    const float ratio = found[0].ratio();
    if (!Below(ratio, tau_half).holds(row[1], column[1], magnitude[1])) {
      above += found[1].holds && found[1].ratio() < 0.99f * ratio;
      continue;
    }
    ++below;
    CHECK(found[1].holds, "ratio %a, tau / 2 %a", ratio, tau_half);
    CHECK(found[1].ratio() <= ratio, "%a above %a", found[1].ratio(), ratio);
  }
  CHECK(below > 10000, "%" PRId64 " are below", below);
  CHECK(above < below / 10, "%" PRId64 " are not found to be below", above);
}

int main() {
  test_planes();
  test_below();
  for (const int64_t m : {1, 17, 70})
    for (const int64_t n : {1, 50})
      for (const int64_t k : {1, 130, 600}) test_magnitude(m, n, k, false);
  test_magnitude(17, 17, kMaxCoarseLength, true);
  test_magnitude(300, 400, 33, false);  // several tiles
  test_sums();
  test_range();
  test_chains();
  return result("ladder");
}
