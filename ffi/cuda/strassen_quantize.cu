#include <string>
#include <utility>

#include "common/quantize.h"
#include "common/scale.h"
#include "common/tables.h"
#include "mma_epilogue.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/cp_async_8.cuh"
#include "ptx/mbarrier.cuh"
#include "strassen.h"

namespace ozaki {
namespace {

// |A'| <= H, and the sums have up to four terms.
static_assert(kBounds[kMaxStrassenModuli].exponent + 32 <= 61, "sums of quarters overflow");

// A CTA takes the same tile of all four quarters, a thread eight consecutive elements of each.
// Tiles follow each other along k for kGroup of them, then down the rows: CTAs that run together
// read and write long runs.
template <bool kContiguous_, int kRows_, int kDepth_, int kThreads_, int kMinBlocks_, int kGroup_>
struct QuarterTile {
  static constexpr bool kContiguous = kContiguous_;  // along k; along the rows otherwise
  static constexpr int kRows = kRows_, kDepth = kDepth_, kOctets = kDepth / 8;
  static constexpr int kThreads = kThreads_, kMinBlocks = kMinBlocks_;
  static constexpr uint32_t kGroup = kGroup_;
  static_assert(kRows * kDepth == 8 * kThreads, "a thread owns an octet of each quarter");

  // In shared memory element h of a row is at row * kPitch + (h % 8) * kPlane + h / 8. Twice an odd
  // number between planes keeps the copies of consecutive h out of each other's banks, the odd
  // pitch those of consecutive rows.
  static constexpr int kPlane = kOctets + 2, kPitch = 8 * kPlane + 1, kQuarter = kRows * kPitch;
  static constexpr int kSharedBytes = 4 * kQuarter * sizeof(uint64_t);
  static_assert(kPlane % 4 == 2, "bank conflicts");
};

using ContiguousTile = QuarterTile<true, 2, 512, 128, 6, 1 << 20>;
using StridedTile = QuarterTile<false, 16, 128, 256, 3, 8>;

// Quarters by the halves of rows and of k that they lie in.
enum Quarter : int { kUpperLeft, kUpperRight, kLowerLeft, kLowerRight, kQuarters };

// Every combination of quarters is one of them plus or minus the combination before it: in this
// order seven reads and four additions make them all.
struct Step {
  int quarter;
  int sign;  // of the combination before: -1, 0 or 1
  int product;
};

struct Steps {
  Step at[kStrassenProducts];
};

constexpr Steps kLhsSteps = {{
    {kUpperLeft, 0, 0},
    {kLowerLeft, -1, 6},
    {kLowerRight, 1, 5},
    {kUpperRight, -1, 2},
    {kLowerRight, 0, 3},
    {kLowerLeft, 1, 4},
    {kUpperRight, 0, 1},
}};

// Rows are columns of B: B12 lies in the lower half of them and in the first half of k.
constexpr Steps kRhsSteps = {{
    {kUpperLeft, 0, 0},
    {kLowerLeft, -1, 4},
    {kLowerRight, -1, 5},
    {kUpperRight, -1, 3},
    {kLowerRight, 0, 2},
    {kLowerLeft, -1, 6},
    {kUpperRight, 0, 1},
}};

struct Arguments {
  const uint64_t* x;  // bits of float64
  Layout layout;
  const int32_t* scale;
  uint8_t* residues;
  int moduli;
  int64_t half_rows, half_k, depth;  // of a quarter; depth: half_k padded
  uint32_t row_tiles, depth_tiles;   // of a quarter
  Steps steps;
};

// A scale that sends every element to zero, and that exponents can be added to.
constexpr int32_t kScaleZero = -(1 << 20);

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
  for (int i = 0; i < 8; ++i) {
    const int index = i * Tile::kThreads + threadIdx.x;
    const int row = Tile::kContiguous ? index / Tile::kDepth : index % Tile::kRows;
    const int h = Tile::kContiguous ? index % Tile::kDepth : index / Tile::kRows;
    uint64_t* place = tile + row * Tile::kPitch + (h & 7) * Tile::kPlane + (h >> 3);
    if (row < rows && h < depth) {
      ptx::cp_async_8(ptx::shared_address(place),
                      source + row * layout.stride_r + h * layout.stride_k);
    } else {
      *place = 0;
    }
  }
}

// step(0), step(1), ... with constants, until one returns false.
template <typename Step, int... kIndices>
__device__ __forceinline__ void for_each_modulus(Step step,
                                                 std::integer_sequence<int, kIndices...>) {
  (step(std::integral_constant<int, kIndices>()) && ...);
}

// Writes the residues of eight integers modulo p at target, those for the next modulus `plane`
// bytes further.
__device__ __forceinline__ void store_residues(const int64_t (&x)[8], int moduli, uint8_t* target,
                                               int64_t plane) {
  for_each_modulus(
      [&](auto index) {
        constexpr int kIndex = decltype(index)::value;
        constexpr Modulus m = kModuli[kIndex];
        uint32_t r[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          r[e] = m.p == 256 ? static_cast<uint32_t>(x[e]) : residue_float(x[e], m);
        }
        *reinterpret_cast<uint2*>(target) = {pack_low_bytes(r[0], r[1], r[2], r[3]),
                                             pack_low_bytes(r[4], r[5], r[6], r[7])};
        target += plane;
        return kIndex + 1 < moduli;
      },
      std::make_integer_sequence<int, kMaxStrassenModuli>());
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
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

  const int row_of_tile = threadIdx.x / Tile::kOctets, octet = threadIdx.x % Tile::kOctets;
  const int64_t row = first_row + row_of_tile, k = first_k + 8 * octet;
  int32_t scale[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = row + half * args.half_rows;
    scale[half] = r < args.layout.rows ? args.scale[b * args.layout.rows + r] : kScaleZero;
    if (is_sentinel(scale[half])) scale[half] = kScaleZero;
  }
  ptx::cp_async_wait<0>();
  __syncthreads();
  if (row >= args.half_rows || k >= args.depth) return;

  // From here on a thread reads and writes its own elements only. They become A' where they are.
  uint64_t* const own = tiles + row_of_tile * Tile::kPitch + octet;
#pragma unroll
  for (int q = 0; q < kQuarters; ++q) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      uint64_t& element = own[q * Tile::kQuarter + e * Tile::kPlane];
      element = static_cast<uint64_t>(quantize_narrow(element, scale[q / 2]));
    }
  }

  const int64_t plane = args.half_rows * args.depth, product = args.moduli * plane;
  uint8_t* const target =
      args.residues + int64_t{b} * kStrassenProducts * product + row * args.depth + k;
  int64_t x[8] = {};
#pragma unroll 1
  for (int i = 0; i < kStrassenProducts; ++i) {
    const Step step = args.steps.at[i];
    const uint64_t* quarter = own + step.quarter * Tile::kQuarter;
    const int64_t keep = step.sign != 0 ? -1 : 0, flip = step.sign < 0 ? -1 : 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) {  // quarter + sign x
      x[e] = static_cast<int64_t>(quarter[e * Tile::kPlane]) + ((x[e] & keep) ^ flip) - flip;
    }
    store_residues(x, args.moduli, target + step.product * product, plane);
  }
}

template <typename Tile>
Status launch(Arguments args, cudaStream_t stream) {
  args.row_tiles = static_cast<uint32_t>((args.half_rows + Tile::kRows - 1) / Tile::kRows);
  args.depth_tiles = static_cast<uint32_t>((args.depth + Tile::kDepth - 1) / Tile::kDepth);
  const int64_t tiles = args.layout.batch * args.row_tiles * args.depth_tiles;
  if (tiles > INT32_MAX) return Status("strassen_quantize: more than 2^31 tiles in the operand");
  const auto kernel = strassen_quantize_kernel<Tile>;
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
  if (moduli < kMinModuli || moduli > kMaxStrassenModuli) {
    return out_of_range("the number of moduli", moduli, kMinModuli, kMaxStrassenModuli);
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
  args.steps = side == StrassenSide::kLhs ? kLhsSteps : kRhsSteps;
  const bool contiguous = layout.stride_k == 1 || layout.k == 1;
  return contiguous ? launch<ContiguousTile>(args, stream) : launch<StridedTile>(args, stream);
}

}  // namespace ozaki
