#include <string>

#include "common/scale.h"
#include "ptx/cp_async.cuh"
#include "ptx/cp_async_8.cuh"
#include "ptx/mbarrier.cuh"
#include "residue_words.cuh"
#include "strassen.h"

namespace ozaki {
namespace {

// Quarters by the halves of rows and of k that they lie in.
enum Quarter : int { kUpperLeft, kUpperRight, kLowerLeft, kLowerRight, kQuarters };

constexpr int kQuad = 4;  // neighbours along k that a thread takes of every quarter

// A CTA takes the same tile of all four quarters. Tiles follow each other along k for kGroup of
// them, then down the rows: CTAs that run together read and write long runs.
template <bool kContiguous_, int kRows_, int kDepth_, int kThreads_, int kGroup_>
struct QuarterTile {
  static constexpr bool kContiguous = kContiguous_;  // along k; along the rows otherwise
  static constexpr int kRows = kRows_, kDepth = kDepth_, kQuads = kDepth / kQuad;
  static constexpr int kThreads = kThreads_;
  static constexpr uint32_t kGroup = kGroup_;
  static_assert(kRows * kDepth % (kQuad * kThreads) == 0, "threads own whole quads");

  // In shared memory element h of a row is at row * kPitch + (h % 4) * kPlane + h / 4. Four times
  // an odd number between planes keeps the copies of consecutive h out of each other's banks, the
  // odd pitch those of consecutive rows.
  static constexpr int kPlane = kQuads + 4, kPitch = kQuad * kPlane + 1, kQuarter = kRows * kPitch;
  static constexpr int kSharedBytes = kQuarters * kQuarter * sizeof(uint64_t);
  static_assert(kPlane % 8 == 4, "bank conflicts");
};

using ContiguousTile = QuarterTile<true, 2, 512, 128, 1 << 20>;
using StridedTile = QuarterTile<false, 16, 128, 256, 8>;

struct Arguments {
  const uint64_t* x;  // bits of float64
  Layout layout;
  const int32_t* scale;
  uint8_t* residues;
  int moduli;
  int64_t half_rows, half_k, depth;  // of a quarter; depth: half_k padded
  uint32_t row_tiles, depth_tiles;   // of a quarter
  uint32_t product_lines;            // cache lines of a product's residues
  StrassenSide side;
};

// Reads a tile of a quarter, with zeros outside the operand.
template <typename Tile>
__device__ __forceinline__ void load_quarter(const Arguments& args, int quarter, uint32_t b,
                                             int64_t first_row, int64_t first_k, uint64_t* tile) {
  const Layout& layout = args.layout;
  const bool lower = quarter >= kLowerLeft, right = quarter % 2 != 0;
  const int64_t row_end = lower ? layout.rows - args.half_rows : args.half_rows;
  const int64_t k_end = right ? layout.k - args.half_k : args.half_k;
  const int64_t rows = row_end - first_row, depth = k_end - first_k;
  const uint64_t* source = args.x + layout.offset(b, first_row + (lower ? args.half_rows : 0),
                                                  first_k + (right ? args.half_k : 0));
#pragma unroll
  for (int i = 0; i < Tile::kRows * Tile::kDepth / Tile::kThreads; ++i) {
    const int index = i * Tile::kThreads + threadIdx.x;
    const int row = Tile::kContiguous ? index / Tile::kDepth : index % Tile::kRows;
    const int h = Tile::kContiguous ? index % Tile::kDepth : index / Tile::kRows;
    uint64_t* place = tile + row * Tile::kPitch + (h % kQuad) * Tile::kPlane + h / kQuad;
    if (row < rows && h < depth) {
      ptx::cp_async_8(ptx::shared_address(place),
                      source + row * layout.stride_r + h * layout.stride_k);
    } else {
      *place = 0;
    }
  }
}

// Residues of a quad: those of its elements 0 and 2 in the halves of one word, of 1 and 3 in those
// of another.
struct QuadResidues {
  uint32_t even, odd;
};

OZAKI_HD constexpr uint32_t both_halves(uint32_t x) { return x << 16 | (x & 0xffff); }

// Both halves of x, in [0, 2 p], brought to [0, p].
template <uint32_t p>
__device__ __forceinline__ uint32_t reduce_halves(uint32_t x) {
  if constexpr (p == 256) {
    return x & both_halves(255);
  } else {
    return __viaddmin_u16x2(x, both_halves(-p), x);
  }
}

// x - y modulo p. The halves of x may all be too large by `excess`.
template <uint32_t p>
__device__ __forceinline__ QuadResidues subtract(const QuadResidues& x, const QuadResidues& y,
                                                 uint32_t excess) {
  return {reduce_halves<p>(x.even - y.even + (both_halves(p) - excess)),
          reduce_halves<p>(x.odd - y.odd + (both_halves(p) - excess))};
}

// Writes the residues modulo p of the quads of the seven sums.
template <int kIndex, typename Integer>
__device__ __forceinline__ void store_sums(const Integer (&x)[kQuarters][kQuad], uint8_t* target,
                                           uint32_t product_lines, StrassenSide side) {
  constexpr Modulus m = kModuli[kIndex];
  // mod_p_float leaves the same bits beside every residue: they are taken off last.
  constexpr uint32_t kBeside = m.p == 256 ? 0 : m.upper_bytes * 0x10001u;
  QuadResidues of[kQuarters];
#pragma unroll
  for (int q = 0; q < kQuarters; ++q) {
    uint32_t r[kQuad];
#pragma unroll
    for (int e = 0; e < kQuad; ++e) {
      r[e] = x[q][e].residue(m);
      if (m.p == 256) r[e] &= 255;
    }
    of[q] = {r[0] + (r[2] << 16), r[1] + (r[3] << 16)};
  }
  const auto store = [&](uint32_t product, const QuadResidues& r, uint32_t beside) {
    *reinterpret_cast<uint32_t*>(target + uint64_t{product_lines * product} * kLineBytes) =
        r.even + 256 * r.odd - 257 * beside;
  };
  const QuadResidues z1 = subtract<m.p>(of[kLowerLeft], of[kUpperLeft], 0);
  const QuadResidues z2 = subtract<m.p>(of[kLowerRight], z1, kBeside);
  const QuadResidues z3 = subtract<m.p>(of[kUpperRight], z2, kBeside);
  const QuadResidues z4 = subtract<m.p>(of[kLowerLeft], of[kLowerRight], 0);
  const uint32_t rhs = side == StrassenSide::kRhs ? 1 : 0;
  store(0, of[kUpperLeft], kBeside);
  store(1, of[kUpperRight], kBeside);
  store(2, z2, 0);
  store(3 + rhs, of[kLowerRight], kBeside);
  store(4 - rhs, z3, 0);
  store(5 + rhs, z1, 0);
  store(6 - rhs, z4, 0);
}

// 24 warps a multiprocessor, 16 where an element takes more registers.
template <typename Tile, typename Integer>
__global__ void __launch_bounds__(Tile::kThreads,
                                  (sizeof(Integer) > 8 ? 512 : 768) / Tile::kThreads)
    strassen_quantize_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ uint64_t tiles[];  // [kQuarters][Tile::kQuarter]

  const uint32_t tiles_of_batch = args.row_tiles * args.depth_tiles;
  const uint32_t b = blockIdx.x / tiles_of_batch, tile = blockIdx.x - b * tiles_of_batch;
  const uint32_t width = min(Tile::kGroup, args.depth_tiles);
  const uint32_t group = tile / (width * args.row_tiles);
  const uint32_t of_group = tile - group * width * args.row_tiles;
  const uint32_t group_width = min(width, args.depth_tiles - group * width);
  const uint32_t row_tile = of_group / group_width, depth_tile = of_group - row_tile * group_width;
  const int64_t first_row = int64_t{row_tile} * Tile::kRows;
  const int64_t first_k = int64_t{group * width + depth_tile} * Tile::kDepth;
#pragma unroll
  for (int q = 0; q < kQuarters; ++q) {
    load_quarter<Tile>(args, q, b, first_row, first_k, tiles + q * Tile::kQuarter);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

  const int64_t plane = args.half_rows * args.depth;
  uint8_t* const batch = args.residues + int64_t{b} * kStrassenProducts * args.moduli * plane;
#pragma unroll 1
  for (int index = threadIdx.x; index < Tile::kRows * Tile::kQuads; index += Tile::kThreads) {
    const int row_of_tile = index / Tile::kQuads, quad = index % Tile::kQuads;
    const int64_t row = first_row + row_of_tile, k = first_k + kQuad * quad;
    if (row >= args.half_rows || k >= args.depth) continue;
    Integer x[kQuarters][kQuad];
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) {
      const int64_t r = row + (q >= kLowerLeft ? args.half_rows : 0);
      int32_t scale = r < args.layout.rows ? args.scale[b * args.layout.rows + r] : kScaleZero;
      if (is_sentinel(scale)) scale = kScaleZero;
      const uint64_t flip = args.side == StrassenSide::kLhs && q % 2 != 0 ? kSignBit : 0;
      const uint64_t* source = tiles + q * Tile::kQuarter + row_of_tile * Tile::kPitch + quad;
#pragma unroll
      for (int e = 0; e < kQuad; ++e) x[q][e] = Integer(source[e * Tile::kPlane] ^ flip, scale);
    }
    uint8_t* target = batch + row * args.depth + k;
    for_each_modulus(
        [&](auto index) {
          constexpr int kIndex = decltype(index)::value;
          store_sums<kIndex>(x, target, args.product_lines, args.side);
          target += plane;
          return kIndex + 1 < args.moduli;
        },
        std::make_integer_sequence<int, Integer::kMaxModuli>());
  }
}

template <typename Tile>
Status launch(Arguments args, cudaStream_t stream) {
  args.row_tiles = static_cast<uint32_t>((args.half_rows + Tile::kRows - 1) / Tile::kRows);
  args.depth_tiles = static_cast<uint32_t>((args.depth + Tile::kDepth - 1) / Tile::kDepth);
  const int64_t tiles = args.layout.batch * args.row_tiles * args.depth_tiles;
  if (tiles > INT32_MAX) return Status("strassen_quantize: more than 2^31 tiles in the operand");
  const auto kernel = args.moduli <= kMaxNarrowModuli ? strassen_quantize_kernel<Tile, Narrow>
                                                      : strassen_quantize_kernel<Tile, Wide>;
  OZAKI_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes));
  kernel<<<static_cast<unsigned>(tiles), Tile::kThreads, Tile::kSharedBytes, stream>>>(args);
  return launch_status("strassen_quantize_kernel");
}

}  // namespace

Status check_strassen(const char* stage, const Layout& layout, int moduli) {
  const auto out_of_range = [stage](const char* name, int64_t value, int64_t low, int64_t high) {
    return Status(std::string(stage) + ": " + name + " is " + std::to_string(value) +
                  ", allowed are " + std::to_string(low) + " to " + std::to_string(high));
  };
  if (moduli < kMinModuli || moduli > kMaxModuli) {
    return out_of_range("the number of moduli", moduli, kMinModuli, kMaxModuli);
  }
  if (layout.batch < 1 || layout.batch > INT32_MAX) {
    return out_of_range("batch", layout.batch, 1, INT32_MAX);
  }
  const int64_t max_rows = INT32_MAX / layout.batch;
  if (layout.rows < 1 || layout.rows > max_rows) {
    return out_of_range("the number of rows", layout.rows, 1, max_rows);
  }
  if (layout.k < 1 || layout.k > INT32_MAX) return out_of_range("k", layout.k, 1, INT32_MAX);
  return Status();
}

Status launch_strassen_quantize(const double* x, const Layout& layout, StrassenSide side,
                                int moduli, const int32_t* scale, uint8_t* residues, const Device&,
                                cudaStream_t stream) {
  OZAKI_RETURN_IF_ERROR(check_strassen("strassen_quantize", layout, moduli));
  Arguments args = {};
  args.x = reinterpret_cast<const uint64_t*>(x);
  args.layout = layout;
  args.scale = scale;
  args.residues = residues;
  args.moduli = moduli;
  args.half_rows = strassen_half(layout.rows);
  args.half_k = strassen_half(layout.k);
  args.depth = strassen_depth(layout.k);
  args.side = side;
  const int64_t product_lines = moduli * args.half_rows * args.depth / kLineBytes;
  if (product_lines > UINT32_MAX / kStrassenProducts) {
    return Status("strassen_quantize: more than 2^39 bytes of residues of one batch element");
  }
  args.product_lines = static_cast<uint32_t>(product_lines);
  const bool contiguous = layout.stride_k == 1 || layout.k == 1;
  return contiguous ? launch<ContiguousTile>(args, stream) : launch<StridedTile>(args, stream);
}

}  // namespace ozaki
