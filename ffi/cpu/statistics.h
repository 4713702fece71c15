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

// Scales and statistics of the rows of a block, to scale int32[batch, rows] and stats int64[batch,
// rows, kStatsFields], using `tile`.
void block_scales(const Operand& operand, const RowBlock& block, const ScaleBounds& bounds,
                  int32_t* scale, int64_t* stats, Tile& tile);

// Those of all rows.
void statistics(const Operand& operand, const ScaleBounds& bounds, int32_t* scale, int64_t* stats,
                const Scheduler& scheduler);

}  // namespace ozaki
