// Row statistics and scales; reading blocks of an operand's rows.
#pragma once

#include <vector>

#include "common/layout.h"
#include "common/scale.h"
#include "common/tables.h"
#include "cpu/parallel.h"

namespace ozaki {

// A float64 operand, or the parts of a complex128 one; never written.
struct Operand {
  const double* data;
  Layout layout;
};

// Rows and elements of them that are read at once: whole cache lines of an operand whose rows lie
// side by side, whole chunks of the statistics.
constexpr int kTileRows = 16;
constexpr int kTileK = 2 * kChunk;

struct Tile {
  alignas(64) uint64_t bits[kTileRows][kTileK];
};

// Up to kTileRows consecutive rows of one batch element: a task.
struct RowBlock {
  int64_t batch, first, rows;
};

inline int64_t row_block_count(const Layout& layout) {
  return layout.batch * ((layout.rows + kTileRows - 1) / kTileRows);
}
RowBlock row_block(const Layout& layout, int64_t index);

// The bits of elements k_begin, ... of the rows; zeros beyond k.
void load_tile(const Operand& operand, const RowBlock& block, int64_t k_begin, Tile& tile);

// Statistics of the rows of a block, using `tile`.
std::vector<RowStatistics> block_statistics(const Operand& operand, const RowBlock& block,
                                            Tile& tile);

// Writes statistics to stats[kStatsFields] and returns the scale for the norm bound.
int32_t store_statistics(const RowStatistics& row, Bound bound, int64_t* stats);

// scale int32[batch, rows] and stats int64[batch, rows, kStatsFields] of an operand, for the norm
// bound of its moduli.
void statistics(const Operand& operand, Bound bound, int32_t* scale, int64_t* stats,
                const Scheduler& scheduler);

}  // namespace ozaki
