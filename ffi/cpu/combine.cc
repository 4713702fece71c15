// A row of the result a task, block by block of columns.
#include "cpu/combine.h"

#include "common/classify.h"
#include "common/crt.h"
#include "cpu/combine_block.h"

namespace ozaki {
namespace {

constexpr int kColumns = 256;  // of a block

// `count` outputs of a row, up to kColumns; anything where a column's scale is a sentinel.
template <int N>
struct CombineKernel {
  OZAKI_HD static void run(CombineRow row, const int32_t* column_scale, int count, uint64_t* out) {
    constexpr int kGroups = Crt<N>::kGroups;
    constexpr Crt<N> c = kCrt<N>;
    uint32_t sums[kGroups][kColumns] = {};
    for (int i = 0; i < N; ++i) {
      const uint8_t* v = row.v + i * row.modulus_stride;
      for (int j = 0; j < count; ++j) sums[i / 3][j] += v[j] * c.multiplier[i];
    }
    for (int j = 0; j < count; ++j) {
      uint32_t y[kGroups];
      for (int g = 0; g < kGroups; ++g) y[g] = sums[g][j];
      const int32_t scale = is_sentinel(column_scale[j]) ? 0 : row.scale + column_scale[j];
      out[j] = round_to_float64(reconstruct<N>(y), scale);
    }
  }
};

// One output of a row or column with non-finite elements, neither of them with a NaN.
uint64_t special_value(const Operand& lhs, const Operand& rhs, int64_t b, int64_t i, int64_t j) {
  SpecialSum sum;
  for (int64_t h = 0; h < lhs.layout.k && !sum.nan; ++h)
    sum.add(load_bits(lhs.data + lhs.layout.offset(b, i, h)),
            load_bits(rhs.data + rhs.layout.offset(b, j, h)));
  return sum.bits();
}

// Copies the outputs of a block that are selected.
void store(const uint64_t* out, int count, const uint8_t* rung, const Flagged& flagged, double* c) {
  if (rung == nullptr) {
    memcpy(c, out, count * sizeof *out);
    return;
  }
  for (int l = 0; l < count; ++l)
    if (flagged.holds(rung[l])) memcpy(c + l, out + l, sizeof *out);
}

}  // namespace

void combine(const uint8_t* v, int moduli, const int32_t* lhs_scale, const int32_t* rhs_scale,
             const Operand& lhs, const Operand& rhs, double* c, const Scheduler& scheduler) {
  combine(v, moduli, moduli, lhs_scale, rhs_scale, lhs, rhs, Selection{}, c, scheduler);
}

void combine(const uint8_t* v, int moduli, int count, const int32_t* lhs_scale,
             const int32_t* rhs_scale, const Operand& lhs, const Operand& rhs,
             const Selection& selection, double* c, const Scheduler& scheduler) {
  const int64_t m = lhs.layout.rows, n = rhs.layout.rows, modulus_stride = m * padded(n);
  const CombineBlock combine_columns = combine_block<CombineKernel, kMaxModuli>(count);
  parallel_for(scheduler, lhs.layout.batch * m, [&](int64_t task) {
    const int64_t b = task / m, i = task % m;
    const int32_t mu = lhs_scale[task];
    const int32_t* column_scale = rhs_scale + b * n;
    const uint8_t* row = v + b * moduli * modulus_stride + i * padded(n);
    for (int64_t j = 0; j < n; j += kColumns) {
      const int width = static_cast<int>(std::min<int64_t>(kColumns, n - j));
      if (!selection.flagged.any(b, i, 1, j, width)) continue;
      const uint8_t* rung = selection.rung ? selection.rung + task * padded(n) + j : nullptr;
      uint64_t out[kColumns];
      if (!is_sentinel(mu))
        combine_columns({row + j, modulus_stride, mu}, column_scale + j, width, out);
      for (int l = 0; l < width; ++l) {
        const int32_t nu = column_scale[j + l];
        if ((is_sentinel(mu) || is_sentinel(nu)) &&
            (rung == nullptr || selection.flagged.holds(rung[l])))
          out[l] =
              mu == kScaleNaN || nu == kScaleNaN ? kNaNBits : special_value(lhs, rhs, b, i, j + l);
      }
      store(out, width, rung, selection.flagged, c + task * n + j);
    }
  });
}

}  // namespace ozaki
