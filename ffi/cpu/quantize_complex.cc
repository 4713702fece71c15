// Residues of a tile at a time: the digits of both parts, then one modulus after the other.
#include "cpu/quantize_complex.h"

#include "common/complex.h"
#include "cpu/simd.h"

namespace ozaki {
namespace {

constexpr int kElements = kTileK / 2;  // of a tile's rows

// Residues of `count` elements, a multiple of 16 up to kElements; those of the next modulus lie
// `stride` bytes further, and those by the second root behind all of the first.
template <bool kWide>
struct ResidueKernel {
  static constexpr int kDigits = kWide ? 4 : 3;

  OZAKI_HD static void run(const uint64_t* bits, int count, int32_t mu, int moduli, uint8_t* out,
                           int64_t stride) {
    uint32_t digits[2][kDigits][kElements];
    for (int part = 0; part < 2; ++part) {
      for (int h = 0; h < count; ++h) {
        uint32_t x[kDigits];
        if constexpr (kWide) {
          to_digits(quantize_wide(bits[2 * h + part], mu), x);
        } else {
          to_digits(quantize_narrow(bits[2 * h + part], mu), x);
        }
        for (int d = 0; d < kDigits; ++d) digits[part][d][h] = x[d];
      }
    }
    for (int i = 0; i < moduli; ++i) {
      const Modulus m = kComplexModuli[i];
      const ImaginaryUnit unit = kImaginaryUnits[i];
      uint8_t* minus = out + moduli * stride;
      for (int h = 0; h < count; ++h) {
        uint32_t re[kDigits], im[kDigits];
        for (int d = 0; d < kDigits; ++d) re[d] = digits[0][d][h], im[d] = digits[1][d][h];
        const RootResidues r = root_residues(digits_mod_p(re, m), digits_mod_p(im, m), m, unit);
        out[h] = static_cast<uint8_t>(r.plus);
        minus[h] = static_cast<uint8_t>(r.minus);
      }
      out += stride;
    }
  }
};

void block_residues(const Operand& parts, const RowBlock& block, int moduli, const int32_t* scale,
                    uint8_t* residues, Tile& tile) {
  const Layout& layout = parts.layout;
  const int64_t row_bytes = padded_k(layout.k / 2), modulus_bytes = layout.rows * row_bytes;
  uint8_t* out = residues + block.batch * 2 * moduli * modulus_bytes + block.first * row_bytes;
  for (int64_t k = 0; k < layout.k; k += kTileK) {
    load_tile(parts, block, k, tile);
    const int count = static_cast<int>(std::min<int64_t>(kElements, row_bytes - k / 2));
    for (int64_t r = 0; r < block.rows; ++r) {
      uint8_t* row = out + r * row_bytes + k / 2;
      const uint64_t* bits = tile.bits[r];
      const int32_t mu = scale[r];
      if (is_sentinel(mu)) {
        for (int i = 0; i < 2 * moduli; ++i) memset(row + i * modulus_bytes, 0, count);
      } else if (moduli <= kMaxNarrowComplexModuli) {
        run_simd<ResidueKernel<false>>(bits, count, mu, moduli, row, modulus_bytes);
      } else {
        run_simd<ResidueKernel<true>>(bits, count, mu, moduli, row, modulus_bytes);
      }
    }
  }
}

}  // namespace

void quantize_complex(const Operand& parts, int moduli, uint8_t* residues, int32_t* scale,
                      int64_t* stats, const Scheduler& scheduler) {
  const Layout& layout = parts.layout;
  parallel_for(scheduler, row_block_count(layout), [&](int64_t task) {
    const RowBlock block = row_block(layout, task);
    Tile tile;
    block_scales(parts, block, {kComplexBounds[moduli]}, scale, stats, tile);
    block_residues(parts, block, moduli, scale + block.batch * layout.rows + block.first, residues,
                   tile);
  });
}

void residues_complex(const Operand& parts, int moduli, const int32_t* scale, uint8_t* residues,
                      const Scheduler& scheduler) {
  const Layout& layout = parts.layout;
  parallel_for(scheduler, row_block_count(layout), [&](int64_t task) {
    const RowBlock block = row_block(layout, task);
    Tile tile;
    block_residues(parts, block, moduli, scale + block.batch * layout.rows + block.first, residues,
                   tile);
  });
}

}  // namespace ozaki
