#include "cpu/planes.h"

#include "cpu/simd.h"

namespace ozaki {
namespace {

// kCoarseBits bits of `count` finite elements, up to kTileK.
struct CoarseKernel {
  OZAKI_HD static void run(const uint64_t* bits, int count, int32_t exponent, uint8_t* out) {
    for (int h = 0; h < count; ++h)
      out[h] = static_cast<uint8_t>(coarse_magnitude(bits[h], exponent));
  }
};

// 14 bits and a mask of them, as four planes `stride` bytes apart.
struct FineKernel {
  OZAKI_HD static void run(const uint64_t* bits, int count, int32_t emax, Side side, uint8_t* out,
                           int64_t stride) {
    uint32_t magnitude[kTileK];
    uint8_t nonzero[kTileK];
    for (int h = 0; h < count; ++h) {
      magnitude[h] = plane_magnitude(bits[h], emax, kFineBits);
      nonzero[h] = !is_zero(bits[h]);
    }
    for (int plane = 0; plane < kFinePlanes; ++plane)
      for (int h = 0; h < count; ++h)
        out[plane * stride + h] = fine_plane(magnitude[h], nonzero[h], plane, side);
  }
};

}  // namespace

void planes(const Operand& operand, const int64_t* stats, int count, const PlaneSubset& subset,
            const FlaggedSide& flagged, uint8_t* planes, const Scheduler& scheduler) {
  const Layout& layout = operand.layout;
  const int64_t kept = subset.kept(), row_bytes = padded_k(kept);
  const int64_t plane_bytes = layout.rows * row_bytes;
  const int64_t width = subset.all() ? kTileK : kPlaneBlock;  // what lies together in k
  parallel_for(scheduler, row_block_count(layout), [&](int64_t task) {
    const RowBlock block = row_block(layout, task);
    if (!flagged.any(block.batch, block.first, block.rows)) return;
    uint8_t* out = planes + block.batch * count * plane_bytes + block.first * row_bytes;
    const int64_t* row_stats = stats + (block.batch * layout.rows + block.first) * kStatsFields;
    Tile tile;
    for (int64_t h = 0; h < row_bytes; h += width) {
      // Beyond what is kept the tile holds zeros.
      Operand part = operand;
      part.layout.k = std::min(layout.k, subset.element(h) + width);
      load_tile(part, block, h < kept ? subset.element(h) : part.layout.k, tile);
      const int bytes = static_cast<int>(std::min(width, row_bytes - h));
      for (int64_t r = 0; r < block.rows; ++r) {
        const RowStatistics row = load_fields(row_stats + r * kStatsFields);
        uint8_t* to = out + r * row_bytes + h;
        const uint64_t* bits = tile.bits[r];
        if (row.flags != 0) {
          for (int plane = 0; plane < count; ++plane)
            std::fill_n(to + plane * plane_bytes, bytes, 0);
        } else if (count == kCoarsePlanes) {
          run_simd<CoarseKernel>(bits, bytes, plane_exponent(row, kCoarseBits), to);
        } else {
          run_simd<FineKernel>(bits, bytes, row.emax, flagged.side, to, plane_bytes);
        }
      }
    }
  });
}

}  // namespace ozaki
