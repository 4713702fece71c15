// A flagged tile a task: a piece of k at a time, the sums of its chains first, then their sums.
#include "cpu/chain_sum.h"

#include "common/chains.h"
#include "cpu/default_environment.h"
#include "cpu/selected_tiles.h"
#include "cpu/simd.h"

namespace ozaki {
namespace {

// Elements of k that are packed at a time, in blocks of kLanes chains that add up side by side.
constexpr int kLanes = 8, kBlock = kLanes * kChain, kPiece = 8 * kBlock;
constexpr int kChains = kPiece / kChain;

// Elements first_k, ... of up to kTile rows: [block][element of a chain][chain], zeros beyond k.
struct Packed {
  alignas(64) double at[kTile][kPiece];

  // Of the rows that are `needed`.
  void load(const Operand& operand, int64_t b, int64_t row, const bool (&needed)[kTile],
            int64_t first_k) {
    const Layout& layout = operand.layout;
    const int64_t depth = std::min<int64_t>(kPiece, layout.k - first_k);
    for (int64_t r = 0; r < kTile; ++r) {
      if (!needed[r]) continue;
      const double* source = operand.data + layout.offset(b, row + r, first_k);
      for (int64_t h = 0; h < kPiece; ++h) {
        const int64_t place = h / kBlock * kBlock + h % kChain * kLanes + h % kBlock / kChain;
        if (h < depth)
          memcpy(&at[r][place], source + h * layout.stride_k, sizeof(double));
        else
          at[r][place] = 0;
      }
    }
  }
};

struct ChainKernel {
  OZAKI_HD static void run(const double* a, const double* b, double* sums) {
    for (int block = 0; block < kPiece; block += kBlock) {
      double acc[kLanes] = {};
      for (int e = 0; e < kChain; ++e)
        for (int q = 0; q < kLanes; ++q)
          acc[q] = __builtin_fma(a[block + e * kLanes + q], b[block + e * kLanes + q], acc[q]);
      for (int q = 0; q < kLanes; ++q) sums[block / kChain + q] = acc[q];
    }
  }
};

// An output's sum up to some chain.
struct Sum {
  double of_groups = 0, of_group = 0;
  int64_t group = 0;  // that the last chain is in

  // The chains of a piece, the first of them `chain` from the start, in groups of 2^log2_group.
  void add(const double (&sums)[kChains], int64_t chain, int log2_group) {
    for (int q = 0; q < kChains; ++q) {
      if ((chain + q) >> log2_group != group) {
        of_groups += of_group;
        of_group = 0;
        group = (chain + q) >> log2_group;
      }
      of_group += sums[q];
    }
  }
  double total() const { return of_groups + of_group; }
};

// One task's rows, columns and sums, 1.4 MiB.
struct Workspace {
  Packed lhs, rhs;
  Sum sum[kTile][kTile];
};

}  // namespace

void chain_sum(const Operand& lhs, const Operand& rhs, const int64_t* lhs_stats,
               const int64_t* rhs_stats, const Selection& selection, int64_t group, double* c,
               const Scheduler& scheduler) {
  const int64_t k = lhs.layout.k;
  const int log2_group = ctz64(static_cast<uint64_t>(group));
  const auto open = [](int64_t) { return true; };
  for_selected_tiles(
      {lhs, lhs_stats}, {rhs, rhs_stats}, selection, scheduler, open,
      [&](const SelectedTile& tile) {
        thread_local const std::unique_ptr<Workspace> workspace(new Workspace);
        Workspace& work = *workspace;
        const DefaultEnvironment environment;
        for (const auto& output : tile.outputs) work.sum[output.row][output.column] = {};
        for (int64_t first = 0; first < k; first += kPiece) {
          if (!occupies(tile.occupied, first, kPiece, k)) continue;
          work.lhs.load(lhs, tile.batch, tile.row, tile.row_needed, first);
          work.rhs.load(rhs, tile.batch, tile.column, tile.column_needed, first);
          for (const auto& output : tile.outputs) {
            double sums[kChains];
            run_simd<ChainKernel>(static_cast<const double*>(work.lhs.at[output.row]),
                                  static_cast<const double*>(work.rhs.at[output.column]), &sums[0]);
            work.sum[output.row][output.column].add(sums, first / kChain, log2_group);
          }
        }
        for (const auto& output : tile.outputs) {
          const uint64_t bits = to_bits(work.sum[output.row][output.column].total());
          const uint64_t stored = is_taken(bits) ? bits : kLeftToWindow;
          memcpy(c + output.place, &stored, sizeof stored);
        }
      });
}

}  // namespace ozaki
