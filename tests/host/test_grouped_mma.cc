// The grouped product by every instruction set that this CPU can run, against plain 64-bit sums.
#include <algorithm>
#include <vector>

#include "check.h"
#include "common/layout.h"
#include "common/tables.h"
#include "cpu/mma_kernels.h"

using namespace ozaki;
using namespace ozaki::test;

struct Problem {
  const char* fill;
  MmaSizes sizes;
};

static bool is_complex(const MmaSizes& s) { return s.set == ModulusSet::kComplex; }

static uint32_t modulus(const MmaSizes& s, int64_t i) {
  return is_complex(s) ? kComplexModuli[i].p : kModuli[i].p;
}

static uint32_t inverse(const MmaSizes& s, int64_t i) {
  return is_complex(s) ? kComplexInverses[s.moduli][i] : kInverses[s.moduli][i];
}

// Rows of k residues in [0, p], all 255 (as far as p allows) or random, the tails zero.
static std::vector<uint8_t> residues(const Problem& problem, int64_t rows, int64_t k) {
  const MmaSizes& s = problem.sizes;
  std::vector<uint8_t> out(s.batch * s.moduli * rows * s.kp);
  for (int64_t row = 0; row < s.batch * s.moduli * rows; ++row) {
    const uint32_t top = std::min(modulus(s, row / rows % s.moduli), 255u);
    for (int64_t h = 0; h < k; ++h)
      out[row * s.kp + h] = problem.fill[0] == 't' ? top : static_cast<uint8_t>(rng() % (top + 1));
  }
  return out;
}

static std::vector<uint8_t> naive(const MmaSizes& s, const std::vector<uint8_t>& lhs,
                                  const std::vector<uint8_t>& rhs) {
  const int64_t np = padded(s.n);
  std::vector<uint8_t> v(s.batch * s.moduli * s.m * np);
  for (int64_t row = 0; row < s.batch * s.moduli * s.m; ++row) {
    const int64_t product = row / s.m, i = product % s.moduli;
    for (int64_t column = 0; column < s.n; ++column) {
      const uint8_t *a = &lhs[row * s.kp], *b = &rhs[(product * s.n + column) * s.kp];
      uint64_t sum = 0;
      for (int64_t h = 0; h < s.kp; ++h) sum += static_cast<uint32_t>(a[h]) * b[h];
      const uint32_t p = modulus(s, i);
      v[row * np + column] = static_cast<uint8_t>(sum % p * inverse(s, i) % p);
    }
  }
  return v;
}

static void check(const MmaKernel& kernel, const Problem& problem, const std::vector<uint8_t>& lhs,
                  const std::vector<uint8_t>& rhs, const std::vector<uint8_t>& expected) {
  const MmaSizes& s = problem.sizes;
  std::vector<uint8_t> v(expected.size());
  grouped_mma(kernel, lhs.data(), rhs.data(), v.data(), s, Scheduler());
  const int64_t np = padded(s.n);
  for (int64_t row = 0; row < s.batch * s.moduli * s.m; ++row)
    for (int64_t column = 0; column < s.n; ++column)
      CHECK(v[row * np + column] == expected[row * np + column],
            "%s, %s: m %" PRId64 " n %" PRId64 " kp %" PRId64 " N %" PRId64 ", row %" PRId64
            " column %" PRId64 ": %d expected %d",
            kernel.name, problem.fill, s.m, s.n, s.kp, s.moduli, row, column, v[row * np + column],
            expected[row * np + column]);
}

int main() {
  std::vector<const MmaKernel*> kernels;
  for (const MmaKernel* kernel : mma_kernels())
    if (kernel->supported()) kernels.push_back(kernel);

  const auto test = [&kernels](int64_t batch, int64_t moduli, int64_t m, int64_t n, int64_t k,
                               ModulusSet set = ModulusSet::kReal) {
    for (const char* fill : {"top", "random"}) {
      const Problem problem = {fill, {batch, moduli, m, n, padded_k(k), set}};
      const std::vector<uint8_t> lhs = residues(problem, m, k), rhs = residues(problem, n, k);
      const std::vector<uint8_t> expected = naive(problem.sizes, lhs, rhs);
      for (const MmaKernel* kernel : kernels) check(*kernel, problem, lhs, rhs, expected);
    }
  };
  for (const int64_t moduli : {2, 15, 20})
    for (const int64_t m : {1, 17, 70})
      for (const int64_t n : {1, 17, 70})
        for (const int64_t k : {1, 15, 130, 600}) test(2, moduli, m, n, k);
  // Around the longest contraction of a 32-bit accumulator, and past two of them.
  for (const int64_t k : {kKBlock - 1, kKBlock, kKBlock + 1, 2 * kKBlock + 1})
    test(1, 15, 3, 17, k);
  for (const int64_t moduli : {2, 20}) test(1, moduli, 17, 2, kKBlock + 1);
  test(1, 2, 300, 400, 33);  // several tiles
  for (const int64_t moduli : {2, 15, 20}) {
    test(2, moduli, 17, 70, 130, ModulusSet::kComplex);
    test(1, moduli, 3, 17, kKBlock + 1, ModulusSet::kComplex);
  }

  for (const MmaKernel* kernel : kernels) std::printf("%s ", kernel->name);
  return result("grouped_mma");
}
