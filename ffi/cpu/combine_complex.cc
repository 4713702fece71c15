// A row of the result a task, block by block of columns.
#include "cpu/combine_complex.h"

#include "common/complex.h"
#include "common/crt.h"
#include "cpu/combine_block.h"

namespace ozaki {
namespace {

constexpr int kColumns = 128;  // of a block

// `count` outputs of a row, up to kColumns; anything where a column's scale is a sentinel.
template <int N>
struct CombineKernel {
  OZAKI_HD static void run(CombineRow row, const int32_t* column_scale, int count, uint64_t* out) {
    constexpr int kGroups = Crt<N>::kGroups;
    constexpr Crt<N> c = kComplexCrt<N>;
    uint32_t sums[2][kGroups][kColumns] = {};
    for (int i = 0; i < N; ++i) {
      const Modulus m = kComplexModuli[i];
      const ImaginaryUnit unit = kImaginaryUnits[i];
      const uint8_t* plus = row.v + i * row.modulus_stride;
      const uint8_t* minus = plus + N * row.modulus_stride;
      for (int j = 0; j < count; ++j) {
        sums[0][i / 3][j] += (plus[j] + minus[j]) * c.multiplier[i];
        sums[1][i / 3][j] += imaginary_residue(plus[j], minus[j], m, unit) * c.multiplier[i];
      }
    }
    for (int part = 0; part < 2; ++part) {
      for (int j = 0; j < count; ++j) {
        uint32_t y[kGroups];
        for (int g = 0; g < kGroups; ++g) y[g] = sums[part][g][j];
        const int32_t scale = is_sentinel(column_scale[j]) ? 0 : row.scale + column_scale[j];
        out[2 * j + part] = round_to_float64(reconstruct<N, ModulusSet::kComplex>(y), scale);
      }
    }
  }
};

// One output of a row or column with non-finite elements, neither of them with a NaN.
void special_value(const Operand& lhs, const Operand& rhs, int64_t b, int64_t i, int64_t j,
                   uint64_t (&out)[2]) {
  ComplexSpecialSum sum;
  for (int64_t h = 0; h < lhs.layout.k; h += 2) {
    uint64_t x[2], y[2];
    memcpy(x, lhs.data + lhs.layout.offset(b, i, h), sizeof x);
    memcpy(y, rhs.data + rhs.layout.offset(b, j, h), sizeof y);
    sum.add(x, y);
  }
  out[0] = sum.re.bits();
  out[1] = sum.im.bits();
}

}  // namespace

void combine_complex(const uint8_t* v, int moduli, const int32_t* lhs_scale,
                     const int32_t* rhs_scale, const Operand& lhs, const Operand& rhs, double* c,
                     const Scheduler& scheduler) {
  const int64_t m = lhs.layout.rows, n = rhs.layout.rows, modulus_stride = m * padded(n);
  const CombineBlock combine_columns = combine_block<CombineKernel, kMaxComplexModuli>(moduli);
  parallel_for(scheduler, lhs.layout.batch * m, [&](int64_t task) {
    const int64_t b = task / m, i = task % m;
    const int32_t mu = lhs_scale[task];
    const int32_t* column_scale = rhs_scale + b * n;
    const uint8_t* row = v + b * 2 * moduli * modulus_stride + i * padded(n);
    for (int64_t j = 0; j < n; j += kColumns) {
      const int count = static_cast<int>(std::min<int64_t>(kColumns, n - j));
      uint64_t out[kColumns][2];
      if (!is_sentinel(mu))
        combine_columns({row + j, modulus_stride, mu}, column_scale + j, count, out[0]);
      for (int l = 0; l < count; ++l) {
        const int32_t nu = column_scale[j + l];
        if (mu == kScaleNaN || nu == kScaleNaN) {
          out[l][0] = out[l][1] = kNaNBits;
        } else if (is_sentinel(mu) || is_sentinel(nu)) {
          special_value(lhs, rhs, b, i, j + l, out[l]);
        }
      }
      memcpy(c + 2 * (task * n + j), out, count * sizeof *out);
    }
  });
}

}  // namespace ozaki
