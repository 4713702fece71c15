// A flagged tile a task: the largest exponents of the outputs' products first, then their sums.
#include "cpu/ladder_sum.h"

#include "common/accumulate.h"
#include "common/chains.h"
#include "cpu/chain_sum.h"
#include "cpu/selected_tiles.h"
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
  const int64_t k = lhs.layout.k;
  const auto open = [&](int64_t place) {
    return group == 0 || load_bits(c + place) == kLeftToWindow;
  };
  for_selected_tiles(
      {lhs, lhs_stats}, {rhs, rhs_stats}, selection, scheduler, open,
      [&](const SelectedTile& tile) {
        thread_local const std::unique_ptr<Workspace> workspace(new Workspace);
        Workspace& work = *workspace;
        for (const auto& output : tile.outputs) {
          work.top[output.row][output.column] = 2 * kNone;
          work.sum[output.row][output.column] = {};
        }
        const auto over_k = [&](const auto& visit) {
          for (int64_t k_begin = 0; k_begin < k; k_begin += kDepth) {
            if (!occupies(tile.occupied, k_begin, kDepth, k)) continue;
            work.lhs.load(lhs, tile.batch, tile.row, tile.row_needed, k_begin);
            work.rhs.load(rhs, tile.batch, tile.column, tile.column_needed, k_begin);
            for (const auto& output : tile.outputs) visit(output.row, output.column);
          }
        };

        over_k([&](int r, int l) {
          run_simd<TopKernel>(static_cast<const int32_t*>(work.lhs.exponent[r]),
                              static_cast<const int32_t*>(work.rhs.exponent[l]), &work.top[r][l]);
        });
        over_k([&](int r, int l) {
          const int32_t *x = work.lhs.exponent[r], *y = work.rhs.exponent[l];
          for (int h = 0; h < kDepth; ++h)
            if (x[h] + y[h] > kSomething)
              work.sum[r][l].add(work.lhs.at(r, h), work.rhs.at(l, h), work.top[r][l]);
        });
        for (const auto& output : tile.outputs) {
          const int top = work.top[output.row][output.column];
          const WindowSum& sum = work.sum[output.row][output.column];
          uint64_t bits = 0;
          if (top > kSomething)
            bits = exact && !sum.decides(top, k)
                       ? superaccumulate(lhs, rhs, tile.batch, tile.row + output.row,
                                         tile.column + output.column)
                       : sum.rounded(top);
          memcpy(c + output.place, &bits, sizeof bits);
        }
      });
}

}  // namespace ozaki
