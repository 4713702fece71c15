#include <string>

#include "common/scale.h"
#include "ptx/cp_async.cuh"
#include "ptx/cp_async_8.cuh"
#include "residues.cuh"
#include "strassen.h"

namespace ozaki {
namespace {

// |A'| <= H, and the sums have up to four terms.
static_assert(kBounds[kMaxStrassenModuli].exponent + 32 <= 61, "sums of quarters overflow");
static_assert(kLineBytes == kPassElements, "padded rows are whole passes");

constexpr int kMaxStrassenBlocks = (kMaxStrassenModuli + kModuliBlock - 1) / kModuliBlock;

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

template <StrassenSide>
constexpr Steps kSteps = {{  // of the lhs
    {kUpperLeft, 0, 0},
    {kLowerLeft, -1, 6},
    {kLowerRight, 1, 5},
    {kUpperRight, -1, 2},
    {kLowerRight, 0, 3},
    {kLowerLeft, 1, 4},
    {kUpperRight, 0, 1},
}};

// Rows are columns of B: B12 lies in the lower half of them and in the first half of k.
template <>
constexpr Steps kSteps<StrassenSide::kRhs> = {{
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
  bool pairs;                        // pairs of elements along k are aligned in all quarters
};

// The part of a quarter from (row, k) on.
struct Part {
  const uint64_t* source;
  int64_t rows, depth;

  __device__ __forceinline__ Part(const Arguments& args, int quarter, uint32_t b, int64_t row,
                                  int64_t k) {
    const Layout& layout = args.layout;
    const bool lower = quarter >= kLowerLeft, right = quarter % 2 != 0;
    rows = (lower ? layout.rows - args.half_rows : args.half_rows) - row;
    depth = (right ? layout.k - args.half_k : args.half_k) - k;
    source = args.x + layout.offset(b, row + (lower ? args.half_rows : 0),
                                    k + (right ? args.half_k : 0));
  }
};

// A scale that sends every element to zero, and that exponents can be added to.
constexpr int32_t kScaleZero = -(1 << 20);

// Writes the residues of all combinations of the quarters' elements at (row, k) .. (row, k + 127),
// of which `bits` are this lane's.
template <StrassenSide kSide>
__device__ __forceinline__ void store_combinations(const Arguments& args,
                                                   const uint64_t (&bits)[kQuarters][4], uint32_t b,
                                                   int64_t row, int64_t k, uint32_t pass,
                                                   const LaneModuli* constants) {
  int64_t quarters[kQuarters][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = row + half * args.half_rows;
    int32_t scale = r < args.layout.rows ? args.scale[b * args.layout.rows + r] : kScaleZero;
    if (is_sentinel(scale)) scale = kScaleZero;
#pragma unroll
    for (int q = 2 * half; q < 2 * half + 2; ++q) {
#pragma unroll
      for (int e = 0; e < 4; ++e) quarters[q][e] = quantize_narrow(bits[q][e], scale);
    }
  }

  const int64_t plane = args.half_rows * args.depth, product = args.moduli * plane;
  uint8_t* const target = args.residues + int64_t{b} * kStrassenProducts * product +
                          row * args.depth + k + threadIdx.x % 32 / 4 * kRun;
  int64_t x[4] = {};
#pragma unroll
  for (int i = 0; i < kStrassenProducts; ++i) {
    constexpr Steps kSteps_ = kSteps<kSide>;
    const Step step = kSteps_.at[i];
    Narrow offset[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      x[e] = quarters[step.quarter][e] + step.sign * x[e];
      offset[e] = Narrow(x[e]);
    }
    store_pass(offset, pass, constants, args.moduli, target + step.product * product, plane, kRun);
  }
}

// An operand that is contiguous along k: a warp a row of a pass of all quarters.
constexpr int kRowThreads = 128;

template <StrassenSide kSide>
__global__ void __launch_bounds__(kRowThreads, 4)
    quantize_rows_kernel(const __grid_constant__ Arguments args) {
  using Buffers = ResidueBuffers<Narrow>;
  __shared__ LaneModuli constants[kMaxStrassenBlocks * 32];
  __shared__ __align__(16) uint8_t passes[kRowThreads / 32][Buffers::kPassBytes];
  fill_lane_moduli<Narrow>(constants, args.moduli);

  const uint32_t warp = blockIdx.x * (kRowThreads / 32) + threadIdx.x / 32;
  const uint32_t passes_of_row = static_cast<uint32_t>(args.depth / kPassElements);
  const uint32_t row_of_batch = warp / passes_of_row;
  const uint32_t b = row_of_batch / static_cast<uint32_t>(args.half_rows);
  const int64_t row = row_of_batch - b * static_cast<uint32_t>(args.half_rows);
  const int64_t k = int64_t{warp - row_of_batch * passes_of_row} * kPassElements;
  const bool inside = b < args.layout.batch;

  uint64_t bits[kQuarters][4] = {};
#pragma unroll
  for (int q = 0; q < kQuarters; ++q) {
    const Part part(args, q, b, row, k);
    if (!inside || part.rows <= 0) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = pass_element(threadIdx.x % 32, half);
      uint64_t(&pair)[2] = reinterpret_cast<uint64_t(&)[2]>(bits[q][2 * half]);
      if (args.pairs && h + 1 < part.depth) {
        load_pair(part.source + h, pair[0], pair[1]);
      } else {
        if (h < part.depth) pair[0] = part.source[h];
        if (h + 1 < part.depth) pair[1] = part.source[h + 1];
      }
    }
  }
  __syncthreads();
  if (!inside) return;
  store_combinations<kSide>(args, bits, b, row, k, ptx::shared_address(passes[threadIdx.x / 32]),
                            constants);
}

// Any other operand: a CTA takes the same tile of all quarters through shared memory, where rows
// become contiguous. Tiles follow each other along k for kGroup of them, then down the rows: CTAs
// that run together read and write long runs.
constexpr int kColumnThreads = 256, kTileRows = 16;
constexpr uint32_t kGroup = 8;
constexpr int kPitch = kPassElements + 2;  // conflict-free, as Tiling::pitch
constexpr int kTileBytes = kQuarters * kTileRows * kPitch * sizeof(uint64_t);
constexpr int kColumnSharedBytes = kTileBytes + kMaxStrassenBlocks * 32 * sizeof(LaneModuli);

template <StrassenSide kSide>
__global__ void __launch_bounds__(kColumnThreads, 2)
    quantize_columns_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(16) uint64_t tiles[];  // [kQuarters][kTileRows][kPitch]
  LaneModuli* constants = reinterpret_cast<LaneModuli*>(tiles + kQuarters * kTileRows * kPitch);
  fill_lane_moduli<Narrow>(constants, args.moduli);

  const uint32_t row_tiles = static_cast<uint32_t>((args.half_rows + kTileRows - 1) / kTileRows);
  const uint32_t depth_tiles = static_cast<uint32_t>(args.depth / kPassElements);
  const uint32_t tiles_of_batch = row_tiles * depth_tiles;
  const uint32_t b = blockIdx.x / tiles_of_batch, tile = blockIdx.x - b * tiles_of_batch;
  const uint32_t width = min(kGroup, depth_tiles);
  const uint32_t group = tile / (width * row_tiles);
  const uint32_t of_group = tile - group * width * row_tiles;
  const uint32_t group_width = min(width, depth_tiles - group * width);
  const uint32_t row_tile = of_group / group_width, depth_tile = of_group - row_tile * group_width;
  const int64_t first_row = int64_t{row_tile} * kTileRows;
  const int64_t k = int64_t{group * width + depth_tile} * kPassElements;

#pragma unroll
  for (int q = 0; q < kQuarters; ++q) {
    const Part part(args, q, b, first_row, k);
#pragma unroll
    for (int i = 0; i < kTileRows * kPassElements / kColumnThreads; ++i) {
      const int index = i * kColumnThreads + threadIdx.x;
      const int row = index % kTileRows, h = index / kTileRows;
      uint64_t* place = tiles + (q * kTileRows + row) * kPitch + h;
      if (row < part.rows && h < part.depth) {
        ptx::cp_async_8(ptx::shared_address(place), part.source + row * args.layout.stride_r +
                                                        h * args.layout.stride_k);
      } else {
        *place = 0;
      }
    }
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

#pragma unroll 1
  for (int row = threadIdx.x / 32; row < kTileRows; row += kColumnThreads / 32) {
    if (first_row + row >= args.half_rows) break;
    uint64_t* const own = tiles + row * kPitch;
    uint64_t bits[kQuarters][4];
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        load_pair(own + q * kTileRows * kPitch + pass_element(threadIdx.x % 32, half),
                  bits[q][2 * half], bits[q][2 * half + 1]);
      }
    }
    // The row of the first quarter makes room for the pass.
    store_combinations<kSide>(args, bits, b, first_row + row, k, ptx::shared_address(own),
                              constants);
  }
}

template <StrassenSide kSide>
Status launch(Arguments args, cudaStream_t stream) {
  const Layout& layout = args.layout;
  const int64_t rows = layout.batch * args.half_rows, passes = args.depth / kPassElements;
  if (layout.stride_k == 1 || layout.k == 1) {
    const int64_t blocks = (rows * passes + kRowThreads / 32 - 1) / (kRowThreads / 32);
    if (rows * passes > INT32_MAX) return Status("strassen_quantize: more than 2^31 warps");
    quantize_rows_kernel<kSide><<<static_cast<unsigned>(blocks), kRowThreads, 0, stream>>>(args);
    return launch_status("strassen_quantize rows");
  }
  const int64_t tiles = layout.batch * ((args.half_rows + kTileRows - 1) / kTileRows) * passes;
  if (tiles > INT32_MAX) return Status("strassen_quantize: more than 2^31 tiles in the operand");
  const auto kernel = quantize_columns_kernel<kSide>;
  OZAKI_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kColumnSharedBytes));
  kernel<<<static_cast<unsigned>(tiles), kColumnThreads, kColumnSharedBytes, stream>>>(args);
  return launch_status("strassen_quantize columns");
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
  args.pairs = reinterpret_cast<uintptr_t>(x) % 16 == 0 && args.half_k % 2 == 0 &&
               (layout.rows == 1 || layout.stride_r % 2 == 0) &&
               (layout.batch == 1 || layout.stride_b % 2 == 0);
  return side == StrassenSide::kLhs ? launch<StrassenSide::kLhs>(args, stream)
                                    : launch<StrassenSide::kRhs>(args, stream);
}

}  // namespace ozaki
