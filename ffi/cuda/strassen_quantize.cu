#include <string>

#include "common/complex.h"
#include "common/scale.h"
#include "for_each_index.cuh"
#include "launch.h"
#include "launch_bounds.h"
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

// By integer instructions alone: with float64 ones this kernel spills registers and takes 5-20% more
// time.
struct ShiftedNarrow : Narrow {
  ShiftedNarrow() = default;
  __device__ __forceinline__ ShiftedNarrow(uint64_t bits, int32_t scale)
      : Narrow(quantize_by_shift(bits, scale)) {}
};

// An element of a real row, and what it is modulo p: the low bytes of residues.
template <typename Integer>
struct Real {
  static constexpr int kParts = 1, kMaxModuli = Integer::kMaxModuli;
  Integer x;

  Real() = default;
  __device__ __forceinline__ Real(const uint64_t (&parts)[1], int32_t scale) : x(parts[0], scale) {}

  OZAKI_HD static constexpr Modulus modulus(int index) { return kModuli[index]; }

  template <int kIndex>
  __device__ __forceinline__ void residues(uint32_t (&r)[1]) const {
    constexpr Modulus m = kModuli[kIndex];
    r[0] = m.p == 256 ? x.residue(m) & 255 : x.residue(m);
  }
};

// An element of a complex row, and what it is by both roots of -1.
template <typename Integer>
struct Complex {
  static constexpr int kParts = 2;
  static constexpr int kMaxModuli =
      std::is_same_v<Integer, ShiftedNarrow> ? kMaxNarrowComplexModuli : kMaxComplexModuli;
  Integer re, im;

  Complex() = default;
  __device__ __forceinline__ Complex(const uint64_t (&parts)[2], int32_t scale)
      : re(parts[0], scale), im(parts[1], scale) {
    to_imaginary(im.words);
  }

  OZAKI_HD static constexpr Modulus modulus(int index) { return kComplexModuli[index]; }

  template <int kIndex>
  __device__ __forceinline__ void residues(uint32_t (&r)[2]) const {
    constexpr Modulus m = kComplexModuli[kIndex];
    constexpr ImaginaryUnit unit = kImaginaryUnits[kIndex];
    const RootResidues both = root_residues_float(re.words, im.words, m, unit);
    r[0] = both.plus, r[1] = both.minus;
  }
};

// A CTA takes the same tile of all four quarters. Tiles follow each other along k for kGroup of
// them, then down the rows: CTAs that run together read and write long runs.
template <bool kContiguous_, int kParts_, int kRows_, int kDepth_, int kThreads_, int kGroup_>
struct QuarterTile {
  static constexpr bool kContiguous = kContiguous_;  // along k; along the rows otherwise
  static constexpr int kParts = kParts_;             // of an element
  static constexpr int kRows = kRows_, kDepth = kDepth_, kQuads = kDepth / kQuad;
  static constexpr int kThreads = kThreads_;
  static constexpr uint32_t kGroup = kGroup_;
  static_assert(kRows * kDepth % (kQuad * kThreads) == 0, "threads own whole quads");

  // In shared memory element h of a row is at row * kPitch + (h % kQuad) * kPlane + h / kQuad. An odd
  // multiple of 4 / kParts between planes keeps the copies of consecutive h out of each other's
  // banks, the odd pitch those of consecutive rows.
  static constexpr int kPlane = kQuads + 4 / kParts, kPitch = kQuad * kPlane + 1;
  static constexpr int kQuarter = kRows * kPitch;
  static constexpr int kSharedBytes = kQuarters * kQuarter * kParts * sizeof(uint64_t);
  static_assert(kQuads % 16 == 0, "bank conflicts");

  // A thread copies every kStep-th element of a row or, where they are contiguous, of every row.
  static constexpr int kStep = kContiguous ? kThreads : kThreads / kRows;
  static constexpr int kRowsOfThread = kContiguous ? kRows : 1;
  static_assert(kDepth % kStep == 0 && kStep % kQuad == 0, "threads own elements of one plane");
};

template <int kParts>
using ContiguousTile = QuarterTile<true, kParts, 2, 512 / kParts, 128, 1 << 20>;
template <int kParts>
using StridedTile = QuarterTile<false, kParts, 16 / kParts, 128, 256, 8>;

struct Arguments {
  const uint64_t* x;  // bits of float64
  Layout layout;
  const int32_t* scale;
  uint8_t* residues;
  int moduli;
  const int32_t* count;              // of the moduli that are made; all where it is null
  int64_t half_rows, half_k, depth;  // of a quarter; depth: half_k padded
  uint32_t row_tiles, depth_tiles;   // of a quarter
  int64_t plane, root;               // bytes: of the residues by one modulus and root, by one root
  uint32_t product_lines;            // cache lines of a product's residues
  StrassenSide side;
};

// How much of a quarter there is from `first` on, as far as a tile reaches.
__device__ __forceinline__ int left(int64_t extent, int64_t first) {
  return static_cast<int>(min(extent - first, int64_t{INT32_MAX}));
}

// The bits of an element, as they lie in memory.
template <int kParts>
struct alignas(kParts * sizeof(uint64_t)) Bits {
  uint64_t part[kParts];
};

__device__ __forceinline__ void copy(Bits<1>* to, const uint64_t* from, bool valid) {
  ptx::cp_async_8(ptx::shared_address(to), from, valid);
}
__device__ __forceinline__ void copy(Bits<2>* to, const uint64_t* from, bool valid) {
  ptx::cp_async_16(ptx::shared_address(to), from, valid);
}

// Reads a tile of every quarter, with zeros outside the operand.
template <typename Tile>
__device__ __forceinline__ void load_quarters(const Arguments& args, uint32_t b, int64_t first_row,
                                              int64_t first_k, Bits<Tile::kParts>* tiles) {
  constexpr int kParts = Tile::kParts;
  const Layout& layout = args.layout;
  const int thread = threadIdx.x;
  const int first = Tile::kContiguous ? 0 : thread % Tile::kRows;
  const int element = Tile::kContiguous ? thread : thread / Tile::kRows;
  const int64_t row = first_row + first, k = first_k + element;
  const int64_t stride_k = Tile::kContiguous ? kParts : layout.stride_k;
  const uint64_t* const source = args.x + layout.offset(b, row, 0) + k * stride_k;
  Bits<kParts>* const place =
      tiles + first * Tile::kPitch + element % kQuad * Tile::kPlane + element / kQuad;
#pragma unroll
  for (int q = 0; q < kQuarters; ++q) {
    const bool lower = q >= kLowerLeft, right = q % 2 != 0;
    const int rows = left(lower ? layout.rows - args.half_rows : args.half_rows, row);
    const int depth = left(right ? layout.k / kParts - args.half_k : args.half_k, k);
    const uint64_t* of_quarter = source + (lower ? args.half_rows * layout.stride_r : 0) +
                                 (right ? args.half_k * stride_k : 0);
#pragma unroll
    for (int r = 0; r < Tile::kRowsOfThread; ++r) {
#pragma unroll
      for (int h = 0; h < Tile::kDepth; h += Tile::kStep) {
        copy(place + q * Tile::kQuarter + r * Tile::kPitch + h / kQuad, of_quarter + h * stride_k,
             r < rows && h < depth);
      }
      of_quarter += layout.stride_r;
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
template <uint32_t p, uint32_t kBeside>
__device__ __forceinline__ void store_sums(const QuadResidues (&of)[kQuarters], uint8_t* target,
                                           uint32_t product_lines, StrassenSide side) {
  const auto store = [&](uint32_t product, const QuadResidues& r, uint32_t beside) {
    *reinterpret_cast<uint32_t*>(target + uint64_t{product_lines * product} * kLineBytes) =
        r.even + 256 * r.odd - 257 * beside;
  };
  const QuadResidues z1 = subtract<p>(of[kLowerLeft], of[kUpperLeft], 0);
  const QuadResidues z2 = subtract<p>(of[kLowerRight], z1, kBeside);
  const QuadResidues z3 = subtract<p>(of[kUpperRight], z2, kBeside);
  const QuadResidues z4 = subtract<p>(of[kLowerLeft], of[kLowerRight], 0);
  const uint32_t rhs = side == StrassenSide::kRhs ? 1 : 0;
  store(0, of[kUpperLeft], kBeside);
  store(1, of[kUpperRight], kBeside);
  store(2, z2, 0);
  store(3 + rhs, of[kLowerRight], kBeside);
  store(4 - rhs, z3, 0);
  store(5 + rhs, z1, 0);
  store(6 - rhs, z4, 0);
}

// Warps of a multiprocessor: fewer where an element takes more registers.
constexpr int warps_for(size_t element_bytes) {
  return element_bytes <= 8 ? 24 : element_bytes <= 16 ? 16 : 8;
}

template <typename Tile, typename Element>
__global__ void __launch_bounds__(Tile::kThreads,
                                  resident(Tile::kThreads,
                                           warps_for(sizeof(Element)) * 32 / Tile::kThreads))
    strassen_quantize_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(16) uint64_t shared[];  // [kQuarters][Tile::kQuarter] elements
  using Bits = Bits<Tile::kParts>;
  Bits* const tiles = reinterpret_cast<Bits*>(shared);

  const int count = args.count != nullptr ? *args.count : args.moduli;
  if (count == 0) return;
  const uint32_t tiles_of_batch = args.row_tiles * args.depth_tiles;
  const uint32_t b = blockIdx.x / tiles_of_batch, tile = blockIdx.x - b * tiles_of_batch;
  const uint32_t width = min(Tile::kGroup, args.depth_tiles);
  const uint32_t group = tile / (width * args.row_tiles);
  const uint32_t of_group = tile - group * width * args.row_tiles;
  const uint32_t group_width = min(width, args.depth_tiles - group * width);
  const uint32_t row_tile = of_group / group_width, depth_tile = of_group - row_tile * group_width;
  const int64_t first_row = int64_t{row_tile} * Tile::kRows;
  const int64_t first_k = int64_t{group * width + depth_tile} * Tile::kDepth;
  load_quarters<Tile>(args, b, first_row, first_k, tiles);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

  constexpr int kParts = Element::kParts;
  uint8_t* const batch = args.residues + int64_t{b} * kStrassenProducts * kParts * args.root;
#pragma unroll 1
  for (int i = 0; i < Tile::kRows * Tile::kQuads / Tile::kThreads; ++i) {
    const int index = i * Tile::kThreads + threadIdx.x;
    const int row_of_tile = index / Tile::kQuads, quad = index % Tile::kQuads;
    const int64_t row = first_row + row_of_tile, k = first_k + kQuad * quad;
    if (row >= args.half_rows || k >= args.depth) continue;
    Element x[kQuarters][kQuad];
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) {
      const int64_t r = row + (q >= kLowerLeft ? args.half_rows : 0);
      int32_t scale = r < args.layout.rows ? args.scale[b * args.layout.rows + r] : kScaleZero;
      if (is_sentinel(scale)) scale = kScaleZero;
      const uint64_t flip = args.side == StrassenSide::kLhs && q % 2 != 0 ? kSignBit : 0;
      const Bits* source = tiles + q * Tile::kQuarter + row_of_tile * Tile::kPitch + quad;
#pragma unroll
      for (int e = 0; e < kQuad; ++e) {
        Bits bits = source[e * Tile::kPlane];
#pragma unroll
        for (int i = 0; i < kParts; ++i) bits.part[i] ^= flip;
        x[q][e] = Element(bits.part, scale);
      }
    }
    uint8_t* target = batch + row * args.depth + k;
    for_each_index(
        [&](auto index) {
          constexpr int kIndex = decltype(index)::value;
          constexpr Modulus m = Element::modulus(kIndex);
          // mod_p_float leaves the same bits beside every residue: they are taken off last.
          constexpr uint32_t kBeside = m.p == 256 ? 0 : m.upper_bytes * 0x10001u;
          QuadResidues of[kParts][kQuarters];
#pragma unroll
          for (int q = 0; q < kQuarters; ++q) {
            uint32_t r[kQuad][kParts];
#pragma unroll
            for (int e = 0; e < kQuad; ++e) x[q][e].template residues<kIndex>(r[e]);
#pragma unroll
            for (int i = 0; i < kParts; ++i) {
              of[i][q] = {r[0][i] + (r[2][i] << 16), r[1][i] + (r[3][i] << 16)};
            }
          }
#pragma unroll
          for (int i = 0; i < kParts; ++i) {
            store_sums<m.p, kBeside>(of[i], target + i * args.root, args.product_lines, args.side);
          }
          target += args.plane;
          return kIndex + 1 < count;
        },
        std::make_integer_sequence<int, Element::kMaxModuli>());
  }
}

template <typename Tile, typename Element>
Status launch_tiles(Arguments args, const Device& device, cudaStream_t stream) {
  args.row_tiles = static_cast<uint32_t>((args.half_rows + Tile::kRows - 1) / Tile::kRows);
  args.depth_tiles = static_cast<uint32_t>((args.depth + Tile::kDepth - 1) / Tile::kDepth);
  const int64_t tiles = args.layout.batch * args.row_tiles * args.depth_tiles;
  return launch("strassen_quantize_kernel", strassen_quantize_kernel<Tile, Element>,
                {tiles, Tile::kThreads, Tile::kSharedBytes}, device, stream, args);
}

template <template <typename> typename Element>
Status launch_field(const Arguments& args, const Device& device, cudaStream_t stream) {
  constexpr int kParts = Element<ShiftedNarrow>::kParts;
  const auto launch_layout = [&](auto of) {
    using Of = decltype(of);
    return args.layout.k_contiguous()
               ? launch_tiles<ContiguousTile<kParts>, Of>(args, device, stream)
               : launch_tiles<StridedTile<kParts>, Of>(args, device, stream);
  };
  return args.moduli <= Element<ShiftedNarrow>::kMaxModuli ? launch_layout(Element<ShiftedNarrow>())
                                                           : launch_layout(Element<Wide>());
}

}  // namespace

Status check_strassen(const char* stage, const Layout& layout, int moduli) {
  const auto out_of_range = [stage](const char* name, int64_t value, int64_t low, int64_t high) {
    return Status(std::string(stage) + ": " + name + " is " + std::to_string(value) +
                  ", allowed are " + std::to_string(low) + " to " + std::to_string(high));
  };
  const int most = layout.parts == 2 ? kMaxComplexModuli : kMaxModuli;
  if (moduli < kMinModuli || moduli > most) {
    return out_of_range("the number of moduli", moduli, kMinModuli, most);
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
                                int moduli, const int32_t* count, const int32_t* scale,
                                uint8_t* residues, const Device& device, cudaStream_t stream) {
  OZAKI_RETURN_IF_ERROR(check_strassen("strassen_quantize", layout, moduli));
  Arguments args = {};
  args.x = reinterpret_cast<const uint64_t*>(x);
  args.layout = layout;
  args.scale = scale;
  args.residues = residues;
  args.moduli = moduli;
  args.count = count;
  args.half_rows = strassen_half(layout.rows);
  args.half_k = strassen_half(layout.k / layout.parts);
  args.depth = strassen_depth(layout.k / layout.parts);
  args.side = side;
  args.plane = args.half_rows * args.depth;
  args.root = moduli * args.plane;
  const int64_t product_lines = layout.parts * args.root / kLineBytes;
  if (product_lines > UINT32_MAX / kStrassenProducts) {
    return Status("strassen_quantize: more than 2^39 bytes of residues of one batch element");
  }
  args.product_lines = static_cast<uint32_t>(product_lines);
  return layout.parts == 2 ? launch_field<Complex>(args, device, stream)
                           : launch_field<Real>(args, device, stream);
}

}  // namespace ozaki
