// One pass over the operand in chunks of kChunk elements, joined at the end of each block of rows.
#include "cpu/statistics.h"

#include "common/occupancy.h"
#include "cpu/simd.h"

namespace ozaki {
namespace {

OZAKI_HD uint64_t maximum(const uint64_t (&values)[kChunk]) {
  int64_t largest = 0;  // signed, as vector units compare; values are magnitudes
  for (int h = 0; h < kChunk; ++h) {
    const int64_t value = static_cast<int64_t>(values[h]);
    largest = value > largest ? value : largest;
  }
  return static_cast<uint64_t>(largest);
}

// Statistics of the kChunk elements at `bits`. One simple loop each: those vectorise.
struct ChunkKernel {
  OZAKI_HD static void run(const uint64_t* bits, RowStatistics* chunk) {
    uint64_t magnitude[kChunk];
    for (int h = 0; h < kChunk; ++h) magnitude[h] = magnitude_bits(bits[h]);
    *chunk = {};
    uint64_t largest = maximum(magnitude);
    if (largest >= kInfinityBits) {
      for (uint64_t& m : magnitude) {
        chunk->flags |= element_flags(m);
        m = finite_magnitude(m);
      }
      largest = maximum(magnitude);
    }
    if (largest == 0) return;

    const int emax = magnitude_exponent(largest);
    int lsb = emax;
    uint64_t sumsq = 0, sumabs = 0;
    for (int h = 0; h < kChunk; ++h) {
      const int bit = magnitude[h] != 0 ? lowest_bit(magnitude[h]) : emax;
      lsb = bit < lsb ? bit : lsb;
    }
    for (int h = 0; h < kChunk; ++h) {
      const uint64_t scaled = scaled_magnitude(magnitude[h], emax);
      sumsq += scaled * scaled;
      sumabs += scaled;
    }
    chunk->emax = emax;
    chunk->lsb = lsb;
    chunk->sumsq = sumsq;
    chunk->sumabs = sumabs;
    for (int h = 0; h < kChunk; ++h) chunk->nnz += magnitude[h] != 0;
  }
};

}  // namespace

RowBlock row_block(const Layout& layout, int64_t index) {
  const int64_t blocks = (layout.rows + kTileRows - 1) / kTileRows;
  const int64_t first = index % blocks * kTileRows;
  return {index / blocks, first, std::min<int64_t>(kTileRows, layout.rows - first)};
}

void load_tile(const Operand& operand, const RowBlock& block, int64_t k_begin, Tile& tile) {
  const Layout& layout = operand.layout;
  const double* source = operand.data + layout.offset(block.batch, block.first, k_begin);
  const int64_t count = std::min<int64_t>(kTileK, layout.k - k_begin);
  if (layout.k_contiguous()) {
    for (int64_t r = 0; r < block.rows; ++r)
      memcpy(tile.bits[r], source + r * layout.stride_r, count * sizeof *source);
  } else {
    for (int64_t h = 0; h < count; ++h)
      for (int64_t r = 0; r < block.rows; ++r)
        memcpy(&tile.bits[r][h], source + r * layout.stride_r + layout.along_k(h), sizeof *source);
  }
  for (int64_t r = 0; r < block.rows; ++r)
    std::fill(tile.bits[r] + count, tile.bits[r] + kTileK, 0);
}

namespace {

struct Row {
  RowStatistics statistics;
  uint64_t occupancy;
};

std::vector<Row> block_statistics(const Operand& operand, const RowBlock& block, Tile& tile) {
  const int64_t k = operand.layout.k, chunks = (k + kChunk - 1) / kChunk;
  std::vector<RowStatistics> parts(block.rows * chunks);
  for (int64_t k_begin = 0; k_begin < k; k_begin += kTileK) {
    load_tile(operand, block, k_begin, tile);
    for (int64_t r = 0; r < block.rows; ++r)
      for (int64_t h = 0; h < kTileK && k_begin + h < k; h += kChunk)
        run_simd<ChunkKernel>(static_cast<const uint64_t*>(tile.bits[r] + h),
                              &parts[r * chunks + (k_begin + h) / kChunk]);
  }
  std::vector<Row> rows(block.rows);
  const int log2_chunks = log2_chunks_of_part(chunks);
  for (int64_t r = 0; r < block.rows; ++r) {
    const RowStatistics* of_row = parts.data() + r * chunks;
    rows[r] = {row_statistics(of_row, chunks), 0};
    for (int64_t c = 0; c < chunks; ++c)
      rows[r].occupancy |= occupancy_of_chunk(of_row[c], c, log2_chunks);
  }
  return rows;
}

// How many elements of a finite row the scale rounds, up to one more than `most`.
uint32_t count_rounded(const double* row, const Layout& layout, int32_t mu, uint32_t most) {
  uint32_t count = 0;
  for (int64_t h = 0; h < layout.k && count <= most; ++h)
    count += is_rounded(load_bits(row + layout.along_k(h)), mu);
  return count;
}

}  // namespace

void block_scales(const Operand& operand, const RowBlock& block, const ScaleBounds& bounds,
                  int32_t* scale, int64_t* stats, Tile& tile) {
  const Layout& layout = operand.layout;
  const std::vector<Row> rows = block_statistics(operand, block, tile);
  for (int64_t r = 0; r < block.rows; ++r) {
    const RowStatistics& row = rows[r].statistics;
    RowScale fewer = {};
    if (bounds.most_rounded != 0) {
      fewer.mu = scale_exponent(row, bounds.fewer);
      if (!is_sentinel(fewer.mu) && fewer.mu < -row.lsb)
        fewer.rounded = count_rounded(operand.data + layout.offset(block.batch, block.first + r, 0),
                                      layout, fewer.mu, bounds.most_rounded);
    }
    const RowScale taken = row_scale(row, bounds, fewer);
    const int64_t at = block.batch * layout.rows + block.first + r;
    scale[at] = taken.mu;
    store_fields(row, taken.rounded, rows[r].occupancy, stats + at * kStatsFields);
  }
}

void statistics(const Operand& operand, const ScaleBounds& bounds, int32_t* scale, int64_t* stats,
                const Scheduler& scheduler) {
  const Layout& layout = operand.layout;
  parallel_for(scheduler, row_block_count(layout), [&](int64_t task) {
    Tile tile;
    block_scales(operand, row_block(layout, task), bounds, scale, stats, tile);
  });
}

}  // namespace ozaki
