// Residues of a tile at a time: integers, their digits, then one modulus after the other.
#include "common/quantize.h"

#include "cpu/quantize.h"
#include "cpu/simd.h"

namespace ozaki {
namespace {

// Residues of `count` elements, a multiple of 16 up to kTileK; those of the next modulus lie
// `stride` bytes further.
template <bool kWide>
struct ResidueKernel {
  static constexpr int kDigits = kWide ? 4 : 3;

  OZAKI_HD static void run(const uint64_t* bits, int count, int32_t mu, int moduli, uint8_t* out,
                           int64_t stride) {
    uint32_t digits[kDigits][kTileK];
    for (int h = 0; h < count; ++h) {
      uint32_t x[kDigits];
      if constexpr (kWide) {
        to_digits(quantize_wide(bits[h], mu), x);
      } else {
        to_digits(quantize_narrow(bits[h], mu), x);
      }
      for (int d = 0; d < kDigits; ++d) digits[d][h] = x[d];
    }
    for (int i = 0; i < moduli; ++i) {
      const Modulus m = kModuli[i];
      for (int h = 0; h < count; ++h) {
        uint32_t x[kDigits];
        for (int d = 0; d < kDigits; ++d) x[d] = digits[d][h];
        out[h] = static_cast<uint8_t>(digits_mod_p(x, m));
      }
      out += stride;
    }
  }
};

// The first `count` of `moduli` moduli. How far the integers reach is up to the scales, and those
// belong to all the moduli.
void block_residues(const Operand& operand, const RowBlock& block, int moduli, int count,
                    const int32_t* scale, uint8_t* residues, Tile& tile) {
  const Layout& layout = operand.layout;
  const int64_t row_bytes = padded_k(layout.k), modulus_bytes = layout.rows * row_bytes;
  uint8_t* out = residues + block.batch * moduli * modulus_bytes + block.first * row_bytes;
  for (int64_t k = 0; k < layout.k; k += kTileK) {
    load_tile(operand, block, k, tile);
    const int width = static_cast<int>(std::min<int64_t>(kTileK, row_bytes - k));
    for (int64_t r = 0; r < block.rows; ++r) {
      uint8_t* row = out + r * row_bytes + k;
      const uint64_t* bits = tile.bits[r];
      const int32_t mu = scale[r];
      if (is_sentinel(mu)) {
        for (int i = 0; i < count; ++i) memset(row + i * modulus_bytes, 0, width);
      } else if (moduli <= kMaxNarrowModuli) {
        run_simd<ResidueKernel<false>>(bits, width, mu, count, row, modulus_bytes);
      } else {
        run_simd<ResidueKernel<true>>(bits, width, mu, count, row, modulus_bytes);
      }
    }
  }
}

}  // namespace

void quantize(const Operand& operand, int moduli, const ScaleBounds& bounds, uint8_t* residues,
              int32_t* scale, int64_t* stats, const Scheduler& scheduler) {
  const Layout& layout = operand.layout;
  parallel_for(scheduler, row_block_count(layout), [&](int64_t task) {
    const RowBlock block = row_block(layout, task);
    Tile tile;
    block_scales(operand, block, bounds, scale, stats, tile);
    block_residues(operand, block, moduli, moduli, scale + block.batch * layout.rows + block.first,
                   residues, tile);
  });
}

void residues(const Operand& operand, int moduli, const int32_t* scale, uint8_t* out,
              const Scheduler& scheduler) {
  residues(operand, moduli, moduli, scale, FlaggedSide{}, out, scheduler);
}

void residues(const Operand& operand, int moduli, int count, const int32_t* scale,
              const FlaggedSide& flagged, uint8_t* residues, const Scheduler& scheduler) {
  const Layout& layout = operand.layout;
  parallel_for(scheduler, row_block_count(layout), [&](int64_t task) {
    const RowBlock block = row_block(layout, task);
    if (!flagged.any(block.batch, block.first, block.rows)) return;
    Tile tile;
    block_residues(operand, block, moduli, count, scale + block.batch * layout.rows + block.first,
                   residues, tile);
  });
}

}  // namespace ozaki
