// A CTA quantizes the rows and columns of its tile itself, 32 k at a time, and takes kModuli of the
// products at once: each element is then rounded once for several moduli. Accumulators of more
// would not fit beside 128 x 128 outputs; smaller tiles would quantize each element more often.
#include <string>

#include "common/layout.h"
#include "common/quantize.h"
#include "common/scale.h"
#include "cuda/ablation/local_prologue.h"
#include "cuda/launch.h"
#include "cuda/mma_heuristics.h"
#include "cuda/mma_sync_tile.cuh"
#include "cuda/ptx/cp_async_8.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace ozaki {
namespace {

// The shape of partial CRT by mma.sync. Its stage of 64 k holds the residues of two steps of 32:
// those being multiplied and those being made.
using S = mma_sync::Shape<128, 128, 2, 4, 1, 1>;
constexpr int kStep = 32, kStages = 2, kHalf = 16;  // a thread makes kHalf residues in a row
static_assert(S::kThreads == S::kBlockM * (kStep / kHalf) && S::kBlockM == S::kBlockN);

// Shared memory: the residues of kModuli moduli, then kStages stages of the operands as they are:
// rows of a, padded so that eight rows meet different banks, and k by columns of b.
constexpr int kPitchA = kStep + 2, kPitchB = S::kBlockN;
constexpr int kStageA = S::kBlockM * kPitchA, kStageElements = kStageA + kStep * kPitchB;
template <int kModuli>
constexpr int kSharedBytes =
    kModuli * S::kStageBytes + kStages * kStageElements * int{sizeof(uint64_t)};

struct Arguments {
  LocalPrologue of;
  int first, groups;  // modulus of the first group, groups of kModuli moduli
  TileGrid grid;      // a problem a group of a batch element
  EpilogueConstants constants;
};

// Elements of one step on their way to shared memory, kPack at a time; zeros outside the operands.
template <int kPack>
__device__ __forceinline__ void copy_stage(const LocalPrologue& of, const double* a,
                                           const double* b, int first_row, int first_column, int k,
                                           uint64_t* stage) {
  const auto copy = [](uint64_t* to, const double* from, bool valid) {
    if constexpr (kPack == 2) {
      ptx::cp_async_16(ptx::shared_address(to), from, valid);
    } else if (valid) {
      ptx::cp_async_8(ptx::shared_address(to), from);
    } else {
      *to = 0;
    }
  };
  constexpr int kLanesA = kStep / kPack, kLanesB = S::kBlockN / kPack;
#pragma unroll 4
  for (int at = threadIdx.x; at < S::kBlockM * kLanesA; at += S::kThreads) {
    const int row = at / kLanesA, h = at % kLanesA * kPack;
    const bool valid = first_row + row < of.m && k + h < of.k;
    copy(stage + row * kPitchA + h, valid ? a + (first_row + row) * of.k + k + h : a, valid);
  }
#pragma unroll 4
  for (int at = threadIdx.x; at < kStep * kLanesB; at += S::kThreads) {
    const int h = at / kLanesB, column = at % kLanesB * kPack;
    const bool valid = k + h < of.k && first_column + column < of.n;
    copy(stage + kStageA + h * kPitchB + column,
         valid ? b + int64_t{k + h} * of.n + first_column + column : b, valid);
  }
}

// The residues of kHalf elements x(0), x(1), ... of a row, a 16-byte piece for each modulus.
template <int kModuli, typename Elements>
__device__ __forceinline__ void make_residues(const Elements& x, int32_t scale,
                                              const Modulus* moduli, uint8_t* piece) {
  uint32_t words[kModuli][kHalf / 4];
#pragma unroll
  for (int w = 0; w < kHalf / 4; ++w) {
    int64_t integers[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) integers[e] = quantize_narrow(x(4 * w + e), scale);
#pragma unroll
    for (int g = 0; g < kModuli; ++g) {
      uint32_t r[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) r[e] = residue_float(integers[e], moduli[g]);
      words[g][w] = pack_low_bytes(r[0], r[1], r[2], r[3]);
    }
  }
#pragma unroll
  for (int g = 0; g < kModuli; ++g) {
    *reinterpret_cast<uint4*>(piece + g * S::kStageBytes) =
        make_uint4(words[g][0], words[g][1], words[g][2], words[g][3]);
  }
}

template <int kModuli, int kPack>
__global__ void __launch_bounds__(S::kThreads, 1)
    local_prologue_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(128) uint8_t shared[];
  uint8_t* const residues = shared;
  uint64_t* const stages = reinterpret_cast<uint64_t*>(shared + kModuli * S::kStageBytes);
  const LocalPrologue& of = args.of;
  const int m = static_cast<int>(of.m), n = static_cast<int>(of.n), k = static_cast<int>(of.k);

  const uint32_t problem = blockIdx.x / args.grid.tiles;
  const Tile tile = tile_of(args.grid, problem, blockIdx.x - problem * args.grid.tiles);
  const uint32_t batch = problem / args.groups;
  const int modulus = args.first + (problem - batch * args.groups) * kModuli;
  const int first_row = tile.m * S::kBlockM, first_column = tile.n * S::kBlockN;
  const double* const a = of.a + int64_t{batch} * m * k;
  const double* const b = of.b + int64_t{batch} * k * n;

  // This thread's row and column, and which half of a step it makes residues of.
  const int row = threadIdx.x % S::kBlockM, half = threadIdx.x / S::kBlockM;
  const int column = mma_sync::rhs_row<S, true>(row);
  const auto scale_of = [](const int32_t* scales, int i, int count) {
    return i < count ? max(scales[i], kScaleZero) : kScaleZero;
  };
  const int32_t scale_a = scale_of(of.scale_a + int64_t{batch} * m, first_row + row, m);
  const int32_t scale_b = scale_of(of.scale_b + int64_t{batch} * n, first_column + column, n);
  const Modulus* const moduli = args.constants.modulus.at + modulus;

  const int steps = (k + kStep - 1) / kStep;
  const auto copy = [&](int step) {
    if (step < steps) {
      copy_stage<kPack>(of, a, b, first_row, first_column, step * kStep,
                        stages + step % kStages * kStageElements);
    }
    ptx::cp_async_commit();
  };
  const auto convert = [&](int step) {
    const uint64_t* const stage = stages + step % kStages * kStageElements;
    const auto* of_row = reinterpret_cast<const ulonglong2*>(stage + row * kPitchA + half * kHalf);
    const uint64_t* of_column = stage + kStageA + half * kHalf * kPitchB + column;
    const int piece = step % 2 * (kStep / kHalf) + half;
    make_residues<kModuli>([&](int h) { return h % 2 == 0 ? of_row[h / 2].x : of_row[h / 2].y; },
                           scale_a, moduli, residues + mma_sync::piece_offset(row, piece));
    make_residues<kModuli>([&](int h) { return of_column[h * kPitchB]; }, scale_b, moduli,
                           residues + mma_sync::piece_offset(S::kBlockM + row, piece));
  };

  copy(0);
  copy(1);
  ptx::cp_async_wait<0>();
  __syncthreads();
  convert(0);
  __syncthreads();

  // While a step is multiplied the residues of the next one are made, and the one after is loaded.
  const mma_sync::Position<S> position;
  const uint32_t base = ptx::shared_address(residues);
  mma_sync::Accumulator<S> acc[kModuli] = {};
  for (int step = 0; step < steps; ++step) {
    copy(step + 2);
    if (step + 1 < steps) convert(step + 1);
#pragma unroll
    for (int g = 0; g < kModuli; ++g) {
      mma_sync::Fragments<S> fragments;
      fragments.load(base + g * S::kStageBytes, position, step % 2);
      fragments.multiply(acc[g]);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  const int np = static_cast<int>(padded(n));
#pragma unroll
  for (int g = 0; g < kModuli; ++g) {
    const size_t plane = (size_t{batch} * of.moduli + modulus + g) * m * np;
    mma_sync::store_residues<S>(acc[g], position, first_row, first_column,
                                args.constants.weights[modulus + g], moduli[g], of.v + plane, m,
                                np);
  }
}

template <int kModuli>
Status launch_groups(const LocalPrologue& product, int first, int groups, const Device& device,
                     cudaStream_t stream) {
  // Rows and columns that start at multiples of 16 bytes are copied so.
  const bool pairs = product.k % 2 == 0 && product.n % 2 == 0;
  const auto kernel = pairs ? local_prologue_kernel<kModuli, 2> : local_prologue_kernel<kModuli, 1>;
  constexpr int kBytes = kSharedBytes<kModuli>;
  if (kBytes > device.shared_bytes_block) {
    return Status("local_prologue: a tile needs " + std::to_string(kBytes) +
                  " bytes of shared memory, a block of this device has " +
                  std::to_string(device.shared_bytes_block));
  }
  Arguments args = {product,
                    first,
                    groups,
                    {},
                    epilogue_constants(static_cast<int>(product.moduli), ModulusSet::kReal)};
  GroupedMma mma = {};
  mma.batch = product.batch, mma.moduli = groups;
  mma.m = product.m, mma.n = product.n, mma.kp = padded_k(product.k);
  if (!make_tile_grid(mma, TileShape::kMmaSync128x128, &args.grid)) {
    return Status("local_prologue: more than 2^30 tiles in a batch element");
  }
  return launch("local_prologue_kernel", kernel, {args.grid.all_tiles(), S::kThreads, kBytes},
                device, stream, args);
}

}  // namespace

Status launch_local_prologue(const LocalPrologue& product, const Device& device,
                             cudaStream_t stream) {
  if (product.k > kKBlock || product.moduli > kMaxNarrowModuli) {
    return Status("local_prologue: k is " + std::to_string(product.k) + " and there are " +
                  std::to_string(product.moduli) + " moduli; at most " + std::to_string(kKBlock) +
                  " and " + std::to_string(kMaxNarrowModuli) + " are supported");
  }
  const int moduli = static_cast<int>(product.moduli);
  OZAKI_RETURN_IF_ERROR(launch_groups<2>(product, 0, moduli / 2, device, stream));
  return moduli % 2 == 0 ? Status() : launch_groups<1>(product, moduli - 1, 1, device, stream);
}

}  // namespace ozaki
