// Outputs with non-finite operands against IEEE arithmetic.
#include <cmath>
#include <limits>

#include "check.h"
#include "common/classify.h"

using namespace ozaki;
using namespace ozaki::test;

int main() {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const double values[] = {0.0, -0.0, 1.5, -2.0, 5e-324, -1e300, inf, -inf, nan};
  const auto pick = [&](unsigned finite) {
    return values[rng() % 6 < finite ? rng() % 6 : rng() % 9];
  };
  for (int i = 0; i < 200000; ++i) {
    SpecialSum parts[2];
    double expected = 0;
    for (int h = 0, k = 1 + static_cast<int>(rng() % 8); h < k; ++h) {
      const double a = pick(i % 7), b = pick(i % 5);
      parts[rng() % 2].add(to_bits(a), to_bits(b));
      // finite products do not count: the definition's sum of them is finite before its rounding
      if (!std::isfinite(a) || !std::isfinite(b)) expected += a * b;
    }
    parts[0].join(parts[1]);
    if (std::isfinite(expected)) continue;
    const uint64_t bits = parts[0].bits();
    CHECK(std::isnan(expected) ? bits == kNaNBits : bits == to_bits(expected),
          "%016" PRIx64 " expected %g", bits, expected);
  }
  return result("classify");
}
