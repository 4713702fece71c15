// Statistics and scale exponents against their definition, in 128-bit integers.
#include <algorithm>
#include <cstring>
#include <vector>

#include "check.h"
#include "common/scale.h"
#include "common/tables.h"

using namespace ozaki;
using namespace ozaki::test;

// ceil(x 2^shift)
static uint128 ceil_scaled(uint128 x, int shift) {
  if (shift >= 0) return x << shift;
  if (shift <= -127) return x != 0;
  return (x >> -shift) + ((x & ((uint128{1} << -shift) - 1)) != 0);
}

static void test_elements() {
  for (int i = 0; i < 200000; ++i) {
    const uint64_t a = magnitude_bits(random_float64(i % 2 ? 0 : 1000, i % 3 ? 3 : 900));
    if (a == 0) continue;
    const uint64_t s = significand(a);
    const int e = magnitude_exponent(a), lsb = lowest_bit(a);
    CHECK(s >> (e - exponent(a) - 1) == 1, "bits %" PRIx64, a);
    CHECK((s >> (lsb - exponent(a)) & 1) && (s & ((uint64_t{1} << (lsb - exponent(a))) - 1)) == 0,
          "bits %" PRIx64, a);
    const int emax = e + static_cast<int>(rng() % (i % 2 ? 60 : 3));
    const uint128 expected = ceil_scaled(s, exponent(a) + 16 - emax);
    CHECK(scaled_magnitude(a, emax) == expected, "bits %" PRIx64 " emax %d", a, emax);
    CHECK(expected >= 1 && expected <= 65536, "bits %" PRIx64 " emax %d", a, emax);
    CHECK(scaled_square(a, emax) == expected * expected, "bits %" PRIx64 " emax %d", a, emax);
  }
  for (const uint64_t bits : {kInfinityBits, kNaNBits, kSignBit | kInfinityBits, kInfinityBits + 1})
    CHECK(finite_magnitude(bits) == 0 && !is_finite(bits), "bits %" PRIx64, bits);
  CHECK(element_flags(kInfinityBits) == kHasInf && element_flags(kNaNBits) == kHasNaN, "flags");
  CHECK(element_flags(kInfinityBits + 1) == kHasNaN && element_flags(0) == 0, "flags");
  CHECK(scaled_magnitude(0, 5) == 0 && scaled_magnitude(0, -1060) == 0, "zero");
}

static RowStatistics chunk(int emax, uint64_t sumsq, int lsb, uint64_t nnz, uint32_t flags = 0,
                           uint64_t sumabs = 0) {
  return {emax, lsb, sumsq, sumabs, static_cast<uint32_t>(nnz), flags};
}

static void test_join() {
  for (int i = 0; i < 20000; ++i) {
    std::vector<RowStatistics> chunks(rng() % 6);
    RowStatistics expected = {};
    bool any = false;
    for (RowStatistics& c : chunks) {
      if (rng() % 4 == 0) continue;
      const int emax = static_cast<int>(rng() % 80) - 1070;
      c = chunk(emax, 1 + random_bits(38), emax - 1 - static_cast<int>(rng() % 53), 1 + rng() % 128,
                0, 1 + random_bits(23));
      if (!any || c.emax > expected.emax) expected.emax = c.emax;
      if (!any || c.lsb < expected.lsb) expected.lsb = c.lsb;
      any = true;
      expected.nnz += c.nnz;
    }
    for (const RowStatistics& c : chunks)
      if (c.nnz != 0) {
        const int shift = c.emax - expected.emax;
        expected.sumsq += static_cast<uint64_t>(ceil_scaled(c.sumsq, 2 * shift));
        expected.sumabs += static_cast<uint64_t>(ceil_scaled(c.sumabs, shift));
      }
    const RowStatistics row = row_statistics(chunks.data(), static_cast<int64_t>(chunks.size()));
    CHECK(row.emax == expected.emax && row.lsb == expected.lsb && row.sumsq == expected.sumsq &&
              row.sumabs == expected.sumabs && row.nnz == expected.nnz,
          "sumsq %" PRIu64 " expected %" PRIu64, row.sumsq, expected.sumsq);
    int64_t fields[kStatsFields];
    store_fields(row, 17, ~uint64_t{3}, fields);
    const RowStatistics loaded = load_fields(fields);
    CHECK(std::memcmp(&loaded, &row, sizeof row) == 0 && rounded_of(fields) == 17 &&
              occupancy_of(fields) == ~uint64_t{3},
          "fields");
  }
  CHECK(rescaled(5, 62) == 1 && rescaled(5, 64) == 1 && rescaled(5, 4000) == 1 &&
            rescaled(0, 80) == 0 && rescaled(17, 4) == 2 && rescaled(16, 4) == 1,
        "rescaled");
}

static void test_ceil_sqrt() {
  for (uint64_t i = 0; i < 200000; ++i) {
    const uint64_t x = i < 100000 ? i : random_bits(61), r = ceil_sqrt(x);
    CHECK(r * r >= x && (r == 0 || (r - 1) * (r - 1) < x), "%" PRIu64, x);
  }
}

// floor(log2(a / b)) by the inequality that defines it.
static int floor_log2_ratio(uint64_t a, uint64_t b) {
  int d = -64;
  while (d < 64) {
    const int next = d + 1;
    const bool holds = next >= 0 ? (uint128{b} << next) >> next == b && uint128{b} << next <= a
                                 : b <= uint128{a} << -next;
    if (!holds) break;
    d = next;
  }
  return d;
}

static void test_scale() {
  for (int n = kMinModuli; n <= kMaxModuli; ++n) {
    const Bound bound = kBounds[n];
    for (int i = 0; i < 3000; ++i) {
      const uint64_t nnz = 1 + random_bits(n == 2 ? 16 : n == 3 ? 24 : 31);
      CHECK(admits(bound, nnz), "n %d nnz %" PRIu64, n, nnz);
      // half = sqrt(nnz) / 2 in units of 2^exponent, both roundings up
      const uint64_t half = rounding_norm(nnz, bound), root = ceil_sqrt(nnz);
      const int unit = bound.exponent + 1;
      CHECK(unit <= 0 ? half == root << -unit : half == ceil_scaled(root, -unit), "n %d", n);
      const uint64_t gap = bound.mantissa - half;
      const uint64_t sumsq = i < 100 ? uint64_t{1} << i % 64 : 1 + random_bits(62);
      const int emax = static_cast<int>(rng() % 2000) - 1000;
      const int lsb = emax - 1 - static_cast<int>(rng() % 200);
      const int d = floor_log2_ratio(gap * gap, sumsq);
      const int t = d >= 0 ? d / 2 : -((1 - d) / 2);
      const int expected = std::min(-lsb, t - emax + 16 + bound.exponent);
      const int mu = scale_exponent(chunk(emax, sumsq, lsb, nnz), bound);
      CHECK(mu == expected, "n %d emax %d sumsq %" PRIu64 " mu %d expected %d", n, emax, sumsq, mu,
            expected);
    }
  }
  const Bound bound = kBounds[15];
  CHECK(scale_exponent(RowStatistics{}, bound) == 0, "empty row");
  CHECK(scale_exponent(chunk(0, 9, 0, 3, kHasInf), bound) == kScaleInf, "Inf");
  CHECK(scale_exponent(chunk(0, 9, 0, 3, kHasNaN | kHasInf), bound) == kScaleNaN, "NaN and Inf");
  CHECK(is_sentinel(kScaleInf) && is_sentinel(kScaleNaN) && !is_sentinel(kScaleInf + 1),
        "sentinel");
  CHECK(!admits(kBounds[2], uint64_t{1} << 20), "n 2, k 2^20");
}

int main() {
  test_elements();
  test_join();
  test_ceil_sqrt();
  test_scale();
  return result("statistics");
}
