// A flagged tile a task: the largest exponents of the outputs' products first, then their sums.
#include "cpu/ladder_sum.h"

#include <vector>

#include "common/accumulate.h"
#include "common/chains.h"
#include "common/occupancy.h"
#include "cpu/chain_sum.h"
#include "cpu/simd.h"

namespace ozaki {
namespace {

constexpr int kDepth = 256;  // elements of k that are unpacked at a time
// The exponent of a zero, and what every sum with it stays below.
constexpr int kNone = -(1 << 20), kSomething = kNone / 2;

// Elements k_begin, ... of up to kTile rows, normalised.
struct Unpacked {
  int32_t exponent[kTile][kDepth];
  uint64_t fraction[kTile][kDepth];
  bool negative[kTile][kDepth];

  // Of the rows that are `needed`.
  void load(const Operand& operand, int64_t b, int64_t row, const bool (&needed)[kTile],
            int64_t k_begin) {
    const Layout& layout = operand.layout;
    const int64_t depth = std::min<int64_t>(kDepth, layout.k - k_begin);
    for (int64_t r = 0; r < kTile; ++r) {
      if (!needed[r]) continue;
      std::fill_n(exponent[r], kDepth, kNone);
      for (int64_t h = 0; h < depth; ++h) {
        const uint64_t bits = load_bits(operand.data + layout.offset(b, row + r, k_begin + h));
        if (is_zero(bits)) continue;
        const Normalised x = normalise(bits);
        exponent[r][h] = x.exponent;
        fraction[r][h] = x.fraction;
        negative[r][h] = x.negative;
      }
    }
  }

  Normalised at(int64_t row, int64_t h) const {
    return {fraction[row][h], exponent[row][h], negative[row][h]};
  }
};

struct TopKernel {
  OZAKI_HD static void run(const int32_t* a, const int32_t* b, int32_t* top) {
    int32_t largest = *top;
    for (int h = 0; h < kDepth; ++h) largest = a[h] + b[h] > largest ? a[h] + b[h] : largest;
    *top = largest;
  }
};

// One task's rows, columns and sums, 2.2 MiB.
struct Workspace {
  Unpacked lhs, rhs;
  int32_t top[kTile][kTile];
  WindowSum sum[kTile][kTile];
};

// The correctly rounded sum of one output's products.
uint64_t superaccumulate(const Operand& lhs, const Operand& rhs, int64_t b, int64_t i, int64_t j) {
  int64_t digits[kDigits] = {};
  for (int64_t h = 0; h < lhs.layout.k; ++h) {
    const uint64_t x = load_bits(lhs.data + lhs.layout.offset(b, i, h));
    const uint64_t y = load_bits(rhs.data + rhs.layout.offset(b, j, h));
    if (is_zero(x) || is_zero(y)) continue;
    add_exactly(normalise(x), normalise(y), [&](int q, int64_t piece) { digits[q] += piece; });
  }
  return round_digits(digits);
}

}  // namespace

void ladder_sum(const Operand& lhs, const Operand& rhs, const int64_t* lhs_stats,
                const int64_t* rhs_stats, const Selection& selection, bool exact, int64_t group,
                double* c, const Scheduler& scheduler) {
  // Of sums in float64 it gives what they leave.
  if (group > 0) chain_sum(lhs, rhs, lhs_stats, rhs_stats, selection, group, c, scheduler);
  const int64_t m = lhs.layout.rows, n = rhs.layout.rows, k = lhs.layout.k;
  const int64_t row_tiles = tiles_of(m), column_tiles = tiles_of(n);
  parallel_for(scheduler, lhs.layout.batch * row_tiles * column_tiles, [&](int64_t task) {
    const int64_t b = task / (row_tiles * column_tiles);
    const int64_t i = task / column_tiles % row_tiles, j = task % column_tiles;
    if (!selection.flagged.tile(b, i, j)) return;
    const int64_t row = i * kTile, column = j * kTile;
    const int64_t rows = std::min(kTile, m - row), columns = std::min(kTile, n - column);

    thread_local const std::unique_ptr<Workspace> workspace(new Workspace);
    Workspace& work = *workspace;
    const auto for_selected = [&](const auto& visit) {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t l = 0; l < columns; ++l)
          if (selection.flagged.holds(selection.rung[(b * m + row + r) * padded(n) + column + l]) &&
              (group == 0 || load_bits(c + (b * m + row + r) * n + column + l) == kLeftToWindow))
            visit(r, l);
    };
    bool row_needed[kTile] = {}, column_needed[kTile] = {};
    uint64_t occupied = 0;  // by products of nonzeros
    for_selected([&](int64_t r, int64_t l) {
      row_needed[r] = column_needed[l] = true;
      occupied |= occupancy_of(lhs_stats + (b * m + row + r) * kStatsFields) &
                  occupancy_of(rhs_stats + (b * n + column + l) * kStatsFields);
      work.top[r][l] = 2 * kNone;
      work.sum[r][l] = {};
    });
    const auto over_k = [&](const auto& visit) {
      for (int64_t k_begin = 0; k_begin < k; k_begin += kDepth) {
        if (!occupies(occupied, k_begin, kDepth, k)) continue;
        work.lhs.load(lhs, b, row, row_needed, k_begin);
        work.rhs.load(rhs, b, column, column_needed, k_begin);
        for_selected(visit);
      }
    };

    over_k([&](int64_t r, int64_t l) {
      run_simd<TopKernel>(static_cast<const int32_t*>(work.lhs.exponent[r]),
                          static_cast<const int32_t*>(work.rhs.exponent[l]), &work.top[r][l]);
    });
    over_k([&](int64_t r, int64_t l) {
      const int32_t *x = work.lhs.exponent[r], *y = work.rhs.exponent[l];
      for (int h = 0; h < kDepth; ++h)
        if (x[h] + y[h] > kSomething)
          work.sum[r][l].add(work.lhs.at(r, h), work.rhs.at(l, h), work.top[r][l]);
    });
    for_selected([&](int64_t r, int64_t l) {
      const int top = work.top[r][l];
      const WindowSum& sum = work.sum[r][l];
      uint64_t bits = 0;
      if (top > kSomething)
        bits = exact && !sum.decides(top, k) ? superaccumulate(lhs, rhs, b, row + r, column + l)
                                             : sum.rounded(top);
      memcpy(c + (b * m + row + r) * n + column + l, &bits, sizeof bits);
    });
  });
}

}  // namespace ozaki
