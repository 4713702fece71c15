// Residues by both roots of -1, in host and device form, and the way back to both parts.
#include "check.h"
#include "common/complex.h"
#include "common/crt.h"

using namespace ozaki;
using namespace ozaki::test;

static uint32_t modulo(int128 x, uint32_t p) {
  const int r = static_cast<int>(x % static_cast<int128>(p));
  return r < 0 ? r + p : r;
}

static void check_residues(int128 re, int128 im, RootResidues device, RootResidues host, int i) {
  const uint32_t p = kComplexModuli[i].p, s = kImaginaryUnits[i].root;
  const uint32_t plus = modulo(re + im % p * s, p), minus = modulo(re - im % p * s, p);
  CHECK(host.plus == plus && host.minus == minus, "host, p %u", p);
  const uint32_t of_plus = device.plus & 255, of_minus = device.minus & 255;
  CHECK(of_plus % p == plus && of_plus <= p, "device, p %u", p);
  CHECK(of_minus % p == minus && of_minus <= p, "device, p %u", p);
}

static int64_t any_int64(int sample) {
  if (sample < 4) return sample % 2 != 0 ? INT64_MAX : -INT64_MAX;
  return static_cast<int64_t>(random_bits(63)) * (rng() % 2 != 0 ? 1 : -1);
}

static void test_residues() {
  for (int i = 0; i < kMaxComplexModuli; ++i) {
    const Modulus& m = kComplexModuli[i];
    const ImaginaryUnit& unit = kImaginaryUnits[i];
    CHECK((unit.root * unit.root + 1) % m.p == 0, "p %u", m.p);
    for (int sample = 0; sample < 1000; ++sample) {
      const int64_t re = any_int64(sample), im = any_int64(sample / 2) / 2;  // below 2^62
      uint32_t x[2], y[2], a[3], b[3];
      to_words(re, x), to_words(im, y), to_imaginary(y), to_digits(re, a), to_digits(im, b);
      check_residues(re, im, root_residues_float(x, y, m, unit),
                     root_residues(digits_mod_p(a, m), digits_mod_p(b, m), m, unit), i);

      const Int96 wide_re = {re >> 17, static_cast<uint32_t>(rng())};
      const Int96 wide_im = {im >> 17, static_cast<uint32_t>(rng())};
      uint32_t wide_x[3], wide_y[3], wide_a[4], wide_b[4];
      to_words(wide_re, wide_x), to_words(wide_im, wide_y), to_imaginary(wide_y);
      to_digits(wide_re, wide_a), to_digits(wide_im, wide_b);
      const auto value = [](const Int96& x) { return (int128{x.high} << 32) + x.low; };
      check_residues(value(wide_re), value(wide_im), root_residues_float(wide_x, wide_y, m, unit),
                     root_residues(digits_mod_p(wide_a, m), digits_mod_p(wide_b, m), m, unit), i);
    }
  }
}

// Both parts of a product from its halved residues v+ and v-, any of which may be p in place of 0.
template <int N>
static void test_parts() {
  const int64_t limit = N < 9 ? int64_t{1} << 7 * N : INT64_MAX;  // below P / 2
  for (int sample = 0; sample < 300; ++sample) {
    const int64_t re = any_int64(sample) % limit, im = any_int64(sample / 2) % limit;
    uint32_t y_re[Crt<N>::kGroups] = {}, y_im[Crt<N>::kGroups] = {}, device[Crt<N>::kGroups] = {};
    for (int i = 0; i < N; ++i) {
      const Modulus& m = kComplexModuli[i];
      const ImaginaryUnit& unit = kImaginaryUnits[i];
      const auto halved = [&](uint32_t c) {
        const uint32_t v = c * kComplexInverses[N][i] % m.p;
        return v == 0 && rng() % 2 != 0 ? m.p : v;
      };
      const int128 turned = int128{im} * unit.root;
      const uint32_t plus = halved(modulo(re + turned, m.p)),
                     minus = halved(modulo(re - turned, m.p));
      const uint32_t multiplier = kComplexCrt<N>.multiplier[i];
      const uint32_t more_plus = plus + rng() % 5 * m.p, more_minus = minus + rng() % 5 * m.p;
      y_re[i / 3] += (sample % 2 ? plus + minus : more_plus + more_minus) * multiplier;
      y_im[i / 3] += imaginary_residue(plus, minus, m, unit) * multiplier;
      const ImaginarySummand summand(m, unit, multiplier);
      const uint32_t difference = sample % 2 ? dot4_signed(0x01ff, minus << 8 | plus, m.p)
                                             : more_minus - more_plus + 5 * m.p;
      const uint32_t x = m.float_zero + difference;
      device[i / 3] += summand.start + x * summand.weight;
      device[i / 3] -= summand.quotient(x) * (m.p * multiplier);
    }
    const auto value = [](const uint32_t (&y)[Crt<N>::kGroups]) {
      return round_to_float64(reconstruct<N, ModulusSet::kComplex>(y), 0);
    };
    CHECK(value(y_re) == to_bits(static_cast<double>(re)), "N %d, real part", N);
    CHECK(value(y_im) == to_bits(static_cast<double>(im)), "N %d, imaginary part", N);
    CHECK(value(device) == value(y_im), "N %d, imaginary part, device form", N);
  }
  if constexpr (N < kMaxComplexModuli) test_parts<N + 1>();
}

// Every difference that Strassen-Winograd has, and more: what is left is below 2 Q.
static void test_imaginary_summands() {
  for (int i = 0; i < kMaxComplexModuli; ++i) {
    const Modulus& m = kComplexModuli[i];
    const ImaginaryUnit& unit = kImaginaryUnits[i];
    const uint32_t multiplier = kComplexCrt<kMaxComplexModuli>.multiplier[i];
    const int64_t product = int64_t{m.p} * multiplier;
    const ImaginarySummand summand(m, unit, multiplier);
    for (uint32_t d = 0; d < 1u << 12; ++d) {
      const uint32_t x = m.float_zero + d;
      const int64_t y = static_cast<uint32_t>(summand.start + x * summand.weight -
                                              summand.quotient(x) * (m.p * multiplier));
      CHECK(y < 2 * product && (int64_t{d} * unit.root * multiplier - y) % product == 0,
            "p %u, d %u: %" PRId64, m.p, d, y);
    }
  }
}

static void test_special_values() {
  const uint64_t inf = kInfinityBits, one = to_bits(1.0), zero = 0;
  ComplexSpecialSum sum;
  sum.add({inf, one}, {one, one});  // (inf - 1) + (inf + 1) i
  CHECK(sum.re.bits() == inf && sum.im.bits() == inf, "one infinity");
  sum.add({one, inf}, {zero, one});  // (0 - inf) + (1 + 0 inf) i
  CHECK(is_nan(sum.re.bits()) && is_nan(sum.im.bits()), "both signs, and zero times infinity");
}

int main() {
  test_residues();
  test_parts<kMinModuli>();
  test_imaginary_summands();
  test_special_values();
  return result("complex");
}
