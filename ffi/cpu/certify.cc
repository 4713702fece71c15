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
                           const float* overlap, int count, float tau_half, uint8_t* rung,
                           float* worst) {
    for (int j = 0; j < count; ++j) {
      const Decision decision =
          decide(within(overlap[j], *row), within(overlap[j], columns[j]), sums[j], tau_half);
      rung[j] = decision.rung;
      const float ratio = decision.by.ratio();
      *worst = ratio > *worst ? ratio : *worst;
    }
  }
};

// The largest norms of one batch element's rows, whose wide scales are written.
LogNorms largest_norms(const CertifiedRows& rows, int64_t first, int64_t count,
                       const RungLimits& limits, int32_t* wide_scale) {
  LogNorms largest = {kNoNorm, kNoNorm};
  for (int64_t i = first; i < first + count; ++i) {
    const WideRow row = wide_row(load_fields(rows.stats + i * kStatsFields), rows.scale[i], limits);
    wide_scale[i] = row.scale;
    largest.first = std::max(largest.first, row.norms.first);
    largest.wide = std::max(largest.wide, row.norms.wide);
  }
  return largest;
}

}  // namespace

void count_moduli(const CertifySizes& sizes, const RungModuli& moduli, const CertifiedRows& rows,
                  const CertifiedRows& columns, RungNeeds needs) {
  const RungLimits limits = RungLimits::of(moduli);
  *needs.count = *needs.wide_count = kMinModuli;
  for (int64_t b = 0; b < sizes.batch; ++b) {
    const LogNorms row = largest_norms(rows, b * sizes.m, sizes.m, limits, needs.wide_row_scale);
    const LogNorms column =
        largest_norms(columns, b * sizes.n, sizes.n, limits, needs.wide_column_scale);
    const int32_t first = modulus_count(row.first + column.first, moduli.first, limits);
    const int32_t wide = modulus_count(row.wide + column.wide, moduli.wide, limits);
    *needs.count = std::max(*needs.count, first);
    *needs.wide_count = std::max(*needs.wide_count, wide);
  }
}

void certify(const int32_t* sums, const CertifySizes& sizes, float tau_half,
             const CertifiedRows& rows, const CertifiedRows& columns, RungMap map,
             const Scheduler& scheduler) {
  const int64_t m = sizes.m, n = sizes.n, np = padded(n);
  const auto row_bounds = bounds(rows.scale, rows.stats, sizes.batch * m, kCoarseBits);
  const auto column_bounds = bounds(columns.scale, columns.stats, sizes.batch * n, kCoarseBits);
  const float part = static_cast<float>(part_length(sizes.k));
  for_each_tile(sizes, scheduler, [&](const Tile& tile) {
    float worst = 0;
    uint32_t found = 0;
    const int64_t first_row = tile.batch * m + tile.row,
                  first_column = tile.batch * n + tile.column;
    uint64_t of_columns[kTile], any_row = 0, any_column = 0;
    for (int64_t j = 0; j < tile.columns; ++j)
      any_column |= of_columns[j] = occupancy_of(columns.stats + (first_column + j) * kStatsFields);
    for (int64_t r = 0; r < tile.rows; ++r) {
      const uint64_t of_row = occupancy_of(rows.stats + (first_row + r) * kStatsFields);
      any_row |= of_row;
      float overlaps[kTile];
      for (int64_t j = 0; j < tile.columns; ++j) overlaps[j] = overlap(of_row, of_columns[j], part);
      const int64_t at = (first_row + r) * np + tile.column;
      uint8_t* rung = map.rung + at;
      run_simd<CoarseRow>(sums + at, &row_bounds[first_row + r], &column_bounds[first_column],
                          static_cast<const float*>(overlaps), static_cast<int>(tile.columns),
                          tau_half, rung, &worst);
      for (int64_t j = 0; j < tile.columns; ++j) found |= 1 << rung[j];
      std::fill(rung + tile.columns, rung + std::min(kTile, np - tile.column), 0);
    }
    map.tiles[tile.index] = found | skips(any_row & any_column);
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
  const float part = static_cast<float>(part_length(sizes.k));
  for_each_tile(sizes, scheduler, [&](const Tile& tile) {
    float& worst = map.worst[tile.index] = 0;
    uint32_t& found = map.tiles[tile.index];
    if ((found & 1 << kUndecided) == 0) return;
    found -= rungs_of(found);
    for (int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
      const int64_t row = tile.batch * m + i;
      const int32_t* row_sums = sums + (tile.batch * kFinePlanes * m + i) * np + tile.column;
      uint8_t* rung = map.rung + row * np + tile.column;
      for (int64_t j = 0; j < tile.columns; ++j) {
        if (rung[j] == kUndecided) {
          const int64_t column = tile.batch * n + tile.column + j;
          const int32_t* x = row_sums + j;
          const float shared = overlap(occupancy_of(rows.stats + row * kStatsFields),
                                       occupancy_of(columns.stats + column * kStatsFields), part);
          const Decision decision =
              decide(within(shared, row_bounds[row]), within(shared, column_bounds[column]),
                     within(shared, wide_rows[row]), within(shared, wide_columns[column]),
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
