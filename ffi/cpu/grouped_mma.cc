#include "cpu/grouped_mma.h"

#include <cstdlib>
#include <memory>
#include <numeric>

#include "common/layout.h"
#include "common/tables.h"
#include "cpu/mma_kernels.h"

namespace ozaki {
namespace {

// The tile of v that a thread computes at once, the k that it packs at a time, and the columns of
// packed rhs that stay in the L1 cache while the panels of lhs pass.
constexpr int64_t kTileRows = 256, kTileColumns = 384, kDepth = 4 * kMaxSteps, kGroupColumns = 48;
constexpr int64_t kMinTile = 64;            // rows or columns, where few tiles meet many threads
constexpr int64_t kTaskProducts = 1 << 20;  // worth a task: smaller tiles are grouped

static_assert(kTileRows % kPanelRows == 0 && kTileColumns % kPanelRows == 0);
static_assert(kKBlock % kDepth == 0);

// One thread's packed operands and accumulators, 704 KiB.
struct Workspace {
  alignas(64) uint8_t lhs[kTileRows * kDepth];
  alignas(64) uint8_t rhs[kTileColumns * kDepth];
  alignas(64) uint32_t acc[kTileRows * kTileColumns];
};

// One tile of one product; lhs, rhs and the results point to its first rows, kp and np elements
// long.
struct Tile {
  const uint8_t *lhs, *rhs;
  int64_t rows, columns, kp, np;
};

// Where residues go.
struct Reduced {
  uint8_t* v;
  const Modulus& modulus;
  uint32_t weights;  // they fold the CRT inverse in
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t whole_panels(int64_t rows) { return ceil_div(rows, kPanelRows) * kPanelRows; }

// Packed byte weights 2^(8j) inverse mod p.
uint32_t packed_weights(uint32_t inverse, uint32_t p) {
  uint32_t weights = 0;
  for (int shift = 0; shift < 32; shift += 8) weights |= (inverse << shift) % p << shift;
  return weights;
}

// The extent of tiles of equal size, none larger than `limit`.
constexpr int64_t tile_extent(int64_t extent, int64_t limit) {
  return whole_panels(ceil_div(extent, ceil_div(extent, limit)));
}

void pack_operand(const MmaKernel& kernel, const uint8_t* rows, int64_t stride, int64_t count,
                  int64_t depth, uint8_t decrement, uint8_t* packed) {
  for (int64_t row = 0; row < count; row += kPanelRows)
    kernel.pack(rows + row * stride, stride, count - row, depth, decrement, packed + row * depth);
}

// Adds the products of k_begin, ... k_end - 1 to work.acc, which is `width` columns wide, lhs
// packed with `decrement` and then with the bits of `flip` changed.
void accumulate(const MmaKernel& kernel, const Tile& tile, int64_t k_begin, int64_t k_end,
                uint8_t decrement, uint8_t flip, int64_t width, Workspace& work) {
  for (int64_t k = k_begin; k < k_end; k += kDepth) {
    const int64_t depth = std::min(kDepth, k_end - k);
    pack_operand(kernel, tile.lhs + k, tile.kp, tile.rows, depth, decrement, work.lhs);
    if (flip != 0)
      for (int64_t i = 0; i < whole_panels(tile.rows) * depth; ++i) work.lhs[i] ^= flip;
    pack_operand(kernel, tile.rhs + k, tile.kp, tile.columns, depth, 0, work.rhs);
    for (int64_t column = 0; column < width; column += kGroupColumns)
      for (int64_t row = 0; row < tile.rows; row += kPanelRows)
        kernel.multiply(work.lhs + row * depth, work.rhs + column * depth, tile.rows - row,
                        std::min(width - column, kGroupColumns), depth / 4,
                        work.acc + row * width + column, width);
  }
}

void multiply_tile(const MmaKernel& kernel, const Tile& tile, const Reduced& out, Workspace& work) {
  const uint32_t p = out.modulus.p;
  const uint8_t decrement = kernel.signed_lhs ? p : 0;
  // Sums of signed products lie within 255 128 2^16 < 2^31 of 0: they start from a multiple of p
  // that keeps them from wrapping as unsigned.
  const uint32_t start = kernel.signed_lhs ? ((1u << 31) / p + 1) * p : 0;

  const int64_t width = whole_panels(tile.columns);
  std::fill_n(work.acc, whole_panels(tile.rows) * width, start);
  for (int64_t k = 0; k < tile.kp; k += kKBlock) {
    if (k > 0) {
      uint8_t residues[kTileColumns];
      for (int64_t row = 0; row < tile.rows; ++row) {
        uint32_t* acc = work.acc + row * width;
        kernel.reduce(acc, width, out.modulus, out.modulus.narrow_weights[0], residues);
        for (int64_t j = 0; j < width; ++j) acc[j] = start + residues[j];
      }
    }
    accumulate(kernel, tile, k, std::min<int64_t>(k + kKBlock, tile.kp), decrement, 0, width, work);
  }

  // Rows that follow each other in v as they do in the tile are reduced as one.
  const bool one = width == tile.np;
  for (int64_t row = 0; row < (one ? 1 : tile.rows); ++row)
    kernel.reduce(work.acc + row * width, one ? tile.rows * width : width, out.modulus, out.weights,
                  out.v + row * tile.np);
}

// A kernel that takes lhs as signed bytes multiplies them less 128: 128 times the sum of a column
// of rhs makes up for it.
void multiply_tile(const MmaKernel& kernel, const Tile& tile, int32_t* sums, Workspace& work) {
  const int64_t width = whole_panels(tile.columns);
  std::fill_n(work.acc, whole_panels(tile.rows) * width, 0);
  if (kernel.signed_lhs) {
    for (int64_t j = 0; j < tile.columns; ++j)
      work.acc[j] = 128 * std::accumulate(tile.rhs + j * tile.kp, tile.rhs + (j + 1) * tile.kp, 0u);
    for (int64_t row = 1; row < tile.rows; ++row)
      std::copy_n(work.acc, width, work.acc + row * width);
  }
  accumulate(kernel, tile, 0, tile.kp, 0, kernel.signed_lhs ? 128 : 0, width, work);
  for (int64_t row = 0; row < tile.rows; ++row)
    std::memcpy(sums + row * tile.np, work.acc + row * width, width * sizeof *sums);
}

// Calls multiply(tile, index of its first output, plane, workspace) for the tiles of the products
// of the first `count` planes that meet a flagged one.
template <typename F>
void for_each_tile(const uint8_t* lhs, const uint8_t* rhs, const MmaSizes& sizes, int count,
                   const Flagged& flagged, const Scheduler& scheduler, const F& multiply) {
  const int64_t m = sizes.m, n = sizes.n, kp = sizes.kp, np = padded(n);
  const int64_t products = sizes.batch * count;
  if (products == 0 || m == 0 || n == 0) return;

  // Smaller tiles where there would be too few for the threads. No result depends on them: the
  // arithmetic is exact.
  int64_t rows = tile_extent(m, kTileRows), columns = tile_extent(n, kTileColumns);
  while (products * ceil_div(m, rows) * ceil_div(n, columns) < 4 * scheduler.threads &&
         std::max(rows, columns) > kMinTile) {
    int64_t& longer = rows > columns ? rows : columns;
    longer = whole_panels(ceil_div(longer, 2));
  }
  const int64_t row_tiles = ceil_div(m, rows), column_tiles = ceil_div(n, columns);
  const int64_t tiles = products * row_tiles * column_tiles;
  const int64_t tiles_per_task = ceil_div(kTaskProducts, rows * columns * (kp + 1));

  parallel_for(scheduler, ceil_div(tiles, tiles_per_task), [&](int64_t task) {
    thread_local const std::unique_ptr<Workspace> workspace(new Workspace);  // not cleared
    const int64_t end = std::min(tiles, (task + 1) * tiles_per_task);
    for (int64_t t = task * tiles_per_task; t < end; ++t) {
      const int64_t column = t % column_tiles * columns;
      const int64_t row = t / column_tiles % row_tiles * rows;
      const int64_t product = t / (column_tiles * row_tiles), b = product / count;
      const int plane = static_cast<int>(product % count);
      const int64_t of_plane = b * sizes.moduli + plane;
      const Tile tile = {lhs + (of_plane * m + row) * kp,
                         rhs + (of_plane * n + column) * kp,
                         std::min(rows, m - row),
                         std::min(columns, n - column),
                         kp,
                         np};
      if (flagged.any(b, row, tile.rows, column, tile.columns))
        multiply(tile, (of_plane * m + row) * np + column, plane, *workspace);
    }
  });
}

// The moduli of a product and the numbers inv_i that their products are multiplied by.
struct ModuliOf {
  const Modulus* modulus;
  const uint32_t* inverses;
};

ModuliOf moduli_of(const MmaSizes& sizes, int count) {
  if (sizes.set == ModulusSet::kComplex) return {kComplexModuli.at, kComplexInverses[count]};
  return {kModuli.at, kInverses[count]};
}

void grouped_mma(const MmaKernel& kernel, const uint8_t* lhs, const uint8_t* rhs, uint8_t* v,
                 const MmaSizes& sizes, int count, const Flagged& flagged,
                 const Scheduler& scheduler) {
  const ModuliOf of = moduli_of(sizes, count);
  uint32_t weights[kMaxModuli];
  for (int i = 0; i < count; ++i) weights[i] = packed_weights(of.inverses[i], of.modulus[i].p);
  for_each_tile(lhs, rhs, sizes, count, flagged, scheduler,
                [&](const Tile& tile, int64_t at, int i, Workspace& work) {
                  multiply_tile(kernel, tile, Reduced{v + at, of.modulus[i], weights[i]}, work);
                });
}

struct Choice {
  MmaIsa isa;
  const MmaKernel* kernel;
};

Choice choose_kernel() {
  const char* variable = std::getenv("JAX_OZAKI_CPU_ISA");
  const std::string wanted = variable ? variable : "";

  std::string names;
  for (const MmaKernel* kernel : mma_kernels()) {
    if (!kernel->supported()) continue;
    if (wanted.empty() || wanted == kernel->name) return {{kernel->name, ""}, kernel};
    names += std::string(names.empty() ? "" : ", ") + kernel->name;
  }
  return {{"", "JAX_OZAKI_CPU_ISA is '" + wanted + "', this CPU can run: " + names}, nullptr};
}

const Choice& choice() {
  static const Choice chosen = choose_kernel();
  return chosen;
}

}  // namespace

const MmaIsa& mma_isa() { return choice().isa; }

std::string grouped_mma(const uint8_t* lhs, const uint8_t* rhs, uint8_t* v, const MmaSizes& sizes,
                        const Scheduler& scheduler) {
  return grouped_mma(lhs, rhs, v, sizes, static_cast<int>(sizes.moduli), Flagged{}, scheduler);
}

std::string grouped_mma(const uint8_t* lhs, const uint8_t* rhs, uint8_t* v, const MmaSizes& sizes,
                        int count, const Flagged& flagged, const Scheduler& scheduler) {
  if (choice().kernel) grouped_mma(*choice().kernel, lhs, rhs, v, sizes, count, flagged, scheduler);
  return choice().isa.error;
}

void grouped_mma(const MmaKernel& kernel, const uint8_t* lhs, const uint8_t* rhs, uint8_t* v,
                 const MmaSizes& sizes, const Scheduler& scheduler) {
  grouped_mma(kernel, lhs, rhs, v, sizes, static_cast<int>(sizes.moduli), Flagged{}, scheduler);
}

std::string magnitude(const uint8_t* lhs, const uint8_t* rhs, int32_t* sums, const MmaSizes& sizes,
                      const Flagged& flagged, const Scheduler& scheduler) {
  if (choice().kernel) magnitude(*choice().kernel, lhs, rhs, sums, sizes, flagged, scheduler);
  return choice().isa.error;
}

void magnitude(const MmaKernel& kernel, const uint8_t* lhs, const uint8_t* rhs, int32_t* sums,
               const MmaSizes& sizes, const Flagged& flagged, const Scheduler& scheduler) {
  for_each_tile(lhs, rhs, sizes, static_cast<int>(sizes.moduli), flagged, scheduler,
                [&](const Tile& tile, int64_t at, int, Workspace& work) {
                  multiply_tile(kernel, tile, sums + at, work);
                });
}

}  // namespace ozaki
