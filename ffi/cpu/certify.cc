// A tile a task; the bounds of rows and columns are made once.
#include "cpu/certify.h"

#include <vector>

#include "common/certificate.h"
#include "cpu/simd.h"

namespace ozaki {
namespace {

std::vector<RowBound> bounds(const int32_t* scale, const int64_t* stats, int64_t count,
                             int plane_bits) {
  std::vector<RowBound> rows(count);
  for (int64_t i = 0; i < count; ++i)
    rows[i] = row_bound(stats + i * kStatsFields, scale[i], plane_bits);
  return rows;
}

struct Tile {
  int64_t index, batch, row, column;  // the first row and column
  int64_t rows, columns;
};

template <typename F>
void for_each_tile(const CertifySizes& sizes, const Scheduler& scheduler, const F& visit) {
  const int64_t row_tiles = tiles_of(sizes.m), column_tiles = tiles_of(sizes.n);
  parallel_for(scheduler, sizes.batch * row_tiles * column_tiles, [&](int64_t task) {
    const int64_t row = task / column_tiles % row_tiles * kTile;
    const int64_t column = task % column_tiles * kTile;
    visit(Tile{task, task / (row_tiles * column_tiles), row, column, std::min(kTile, sizes.m - row),
               std::min(kTile, sizes.n - column)});
  });
}

// One row of a tile by the coarse planes: the rungs of `count` columns, and the worst ratio so far.
struct CoarseRow {
  OZAKI_HD static void run(const int32_t* sums, const RowBound* row, const RowBound* columns,
                           int count, float tau_half, uint8_t* rung, float* worst) {
    for (int j = 0; j < count; ++j) {
      const Decision decision = decide(*row, columns[j], sums[j], tau_half);
      rung[j] = decision.rung;
      const float ratio = decision.by.ratio();
      *worst = ratio > *worst ? ratio : *worst;
    }
  }
};

}  // namespace

void certify(const int32_t* sums, const CertifySizes& sizes, float tau_half,
             const CertifiedRows& rows, const CertifiedRows& columns, RungMap map,
             const Scheduler& scheduler) {
  const int64_t m = sizes.m, n = sizes.n, np = padded(n);
  const auto row_bounds = bounds(rows.scale, rows.stats, sizes.batch * m, kCoarseBits);
  const auto column_bounds = bounds(columns.scale, columns.stats, sizes.batch * n, kCoarseBits);
  for_each_tile(sizes, scheduler, [&](const Tile& tile) {
    float worst = 0;
    uint8_t found = 0;
    for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
      const int64_t at = (tile.batch * m + i) * np + tile.column;
      uint8_t* rung = map.rung + at;
      run_simd<CoarseRow>(sums + at, &row_bounds[tile.batch * m + i],
                          &column_bounds[tile.batch * n + tile.column],
                          static_cast<int>(tile.columns), tau_half, rung, &worst);
      for (int64_t j = 0; j < tile.columns; ++j) found |= 1 << rung[j];
      std::fill(rung + tile.columns, rung + std::min(kTile, np - tile.column), 0);
    }
    map.tiles[tile.index] = found;
    map.worst[tile.index] = worst;
  });
}

void certify_fine(const int32_t* sums, const CertifySizes& sizes, bool all_k, float tau_half,
                  const CertifiedRows& rows, const CertifiedRows& columns,
                  const int32_t* wide_row_scale, const int32_t* wide_column_scale, RungMap map,
                  const Scheduler& scheduler) {
  const int64_t m = sizes.m, n = sizes.n, np = padded(n), plane = m * np;
  const auto row_bounds = bounds(rows.scale, rows.stats, sizes.batch * m, kFineBits);
  const auto column_bounds = bounds(columns.scale, columns.stats, sizes.batch * n, kFineBits);
  const auto wide_rows = bounds(wide_row_scale, rows.stats, sizes.batch * m, kFineBits);
  const auto wide_columns = bounds(wide_column_scale, columns.stats, sizes.batch * n, kFineBits);
  for_each_tile(sizes, scheduler, [&](const Tile& tile) {
    float& worst = map.worst[tile.index] = 0;
    uint8_t& found = map.tiles[tile.index];
    if ((found & 1 << kUndecided) == 0) return;
    found = 0;
    for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
      const int64_t row = tile.batch * m + i;
      const int32_t* row_sums = sums + (tile.batch * kFinePlanes * m + i) * np + tile.column;
      uint8_t* rung = map.rung + row * np + tile.column;
      for (int64_t j = 0; j < tile.columns; ++j) {
        if (rung[j] == kUndecided) {
          const int64_t column = tile.batch * n + tile.column + j;
          const int32_t* x = row_sums + j;
          const Decision decision =
              decide(row_bounds[row], column_bounds[column], wide_rows[row], wide_columns[column],
                     {x[0], x[plane], x[2 * plane], x[3 * plane]}, all_k, tau_half);
          rung[j] = decision.rung;
          worst = std::max(worst, decision.by.ratio());
        }
        found |= 1 << rung[j];
      }
    }
  });
}

}  // namespace ozaki
