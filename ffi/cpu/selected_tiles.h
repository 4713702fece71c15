// The outputs that the last rung sums, by tiles, and what they need of the operands.
#pragma once

#include <vector>

#include "common/occupancy.h"
#include "cpu/combine.h"
#include "cpu/parallel.h"

namespace ozaki {

// One side of the product, with its statistics int64[batch, rows, kStatsFields].
struct SummedSide {
  const Operand& operand;
  const int64_t* stats;

  uint64_t occupancy(int64_t b, int64_t row) const {
    return occupancy_of(stats + (b * operand.layout.rows + row) * kStatsFields);
  }
};

// Of a tile, the outputs that are selected.
struct SelectedTile {
  struct Output {
    int32_t row, column;  // of the tile
    int64_t place;        // in c
  };

  int64_t batch, row, column;  // the tile's first output
  std::vector<Output> outputs;
  bool row_needed[kTile] = {}, column_needed[kTile] = {};
  uint64_t occupied = 0;  // by products of nonzeros
};

// visit(tile) for the flagged tiles, a task each. Of the selected outputs it has those that are
// open(place in c).
template <typename Open, typename Visit>
void for_selected_tiles(const SummedSide& lhs, const SummedSide& rhs, const Selection& selection,
                        const Scheduler& scheduler, const Open& open, const Visit& visit) {
  const int64_t m = lhs.operand.layout.rows, n = rhs.operand.layout.rows;
  const int64_t row_tiles = tiles_of(m), column_tiles = tiles_of(n);
  parallel_for(scheduler, lhs.operand.layout.batch * row_tiles * column_tiles, [&](int64_t task) {
    const int64_t b = task / (row_tiles * column_tiles);
    const int64_t i = task / column_tiles % row_tiles, j = task % column_tiles;
    if (!selection.flagged.tile(b, i, j)) return;
    SelectedTile tile;
    tile.batch = b, tile.row = i * kTile, tile.column = j * kTile;
    for (int64_t r = 0; r < std::min(kTile, m - tile.row); ++r) {
      const int64_t of_row = b * m + tile.row + r;
      const uint8_t* rung = selection.rung + of_row * padded(n) + tile.column;
      const int64_t first = of_row * n + tile.column;
      for (int64_t l = 0; l < std::min(kTile, n - tile.column); ++l) {
        if (!selection.flagged.holds(rung[l]) || !open(first + l)) continue;
        tile.outputs.push_back({static_cast<int32_t>(r), static_cast<int32_t>(l), first + l});
        tile.row_needed[r] = tile.column_needed[l] = true;
        tile.occupied |= lhs.occupancy(b, tile.row + r) & rhs.occupancy(b, tile.column + l);
      }
    }
    visit(tile);
  });
}

}  // namespace ozaki
