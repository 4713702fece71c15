// Grouped INT8 matrix product for sm_80 and later, without anything that is Hopper's own: cp.async
// into a ring of shared-memory stages, ldmatrix, mma.sync, and the same epilogue as on sm_90a.
#include <algorithm>
#include <cstdint>

#include "device.h"
#include "mma_epilogue.cuh"
#include "mma_launch.h"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_sync.cuh"
#include "tile_scheduler.cuh"

namespace ozaki {
namespace {

template <int kBlockM_, int kBlockN_, int kWarpsM_, int kWarpsN_, int kStages_,
          int kCtasPerMultiprocessor_>
struct Shape {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kBlockK = 64;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
  static constexpr int kWarpM = kBlockM / kWarpsM, kWarpN = kBlockN / kWarpsN;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kStages = kStages_;
  static constexpr int kCtasPerMultiprocessor = kCtasPerMultiprocessor_;

  // A stage holds lhs rows, then rhs rows, of four 16-byte pieces.
  static constexpr int kPieces = kBlockK / 16;
  static constexpr int kRowsPerPass = kThreads / kPieces;
  static constexpr int kLhsPasses = kBlockM / kRowsPerPass, kRhsPasses = kBlockN / kRowsPerPass;
  static constexpr int kStageBytes = (kBlockM + kBlockN) * kBlockK;
  static constexpr int kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 8;
  static constexpr int kColumns = kWarpN / 4;  // consecutive output columns of a lane

  // Shared memory: a ring of stages; for the partial CRT a group's first residues.
  using Partial = PartialCrt<kFragmentsM * kFragmentsN, kThreads>;
  static constexpr int kPartialOffset = kStages * kStageBytes;
  template <MmaOutput kKind>
  static constexpr int kSharedBytes =
      kPartialOffset + (kKind == MmaOutput::kPartialCrt ? Partial::kSharedBytes : 0);

  static_assert(kBlockM % kRowsPerPass == 0 && kBlockN % kRowsPerPass == 0, "whole passes");
  static_assert(kWarpN % kRowsPerPass == 0 || kRowsPerPass % kWarpN == 0,
                "the permutation of rhs rows splits into a thread's part and a pass's part");
  static_assert(kKBlock % kBlockK == 0, "accumulators are folded between stages");
  // Of the 100 KiB of an sm_86, sm_89 or sm_120 multiprocessor; a CTA takes 1 KiB more than its
  // own.
  static_assert(kCtasPerMultiprocessor * (kSharedBytes<MmaOutput::kResidues> + 1024) <= 100 * 1024);
};

// Pieces are swizzled so that the eight rows of an ldmatrix meet eight different bank groups.
__device__ __forceinline__ uint32_t piece_offset(int row, int piece) {
  return row * 64 + ((piece ^ row >> 1) & 3) * 16;
}

// Lhs and rhs fragments of a warp for 32 consecutive k.
template <typename S>
struct Fragments {
  uint32_t lhs[S::kFragmentsM][4];
  uint32_t rhs[S::kFragmentsN / 2][4];

  __device__ __forceinline__ void load(uint32_t stage, int warp_m, int warp_n, int lane, int k) {
    const int row = warp_m * S::kWarpM + lane % 16;
    const int column = S::kBlockM + warp_n * S::kWarpN + lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < S::kFragmentsM; ++i) {
      ptx::ldmatrix_x4(lhs[i], stage + i * 16 * 64 + piece_offset(row, k * 2 + lane / 16));
    }
#pragma unroll
    for (int i = 0; i < S::kFragmentsN / 2; ++i) {
      ptx::ldmatrix_x4(rhs[i], stage + i * 16 * 64 + piece_offset(column, k * 2 + lane / 8 % 2));
    }
  }

  __device__ __forceinline__ void multiply(
      uint32_t (&acc)[S::kFragmentsM][S::kFragmentsN][4]) const {
#pragma unroll
    for (int i = 0; i < S::kFragmentsM; ++i) {
#pragma unroll
      for (int j = 0; j < S::kFragmentsN; ++j) {
        ptx::mma_m16n8k32(acc[i][j], lhs[i], rhs[j / 2][j % 2 * 2], rhs[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
};

template <typename S, MmaOutput kKind>
__global__ void __launch_bounds__(S::kThreads, S::kCtasPerMultiprocessor)
    mma_sync_kernel(const __grid_constant__ MmaArguments args) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t stages = ptx::shared_address(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / S::kWarpsN, warp_n = warp % S::kWarpsN;
  const int k_tiles = (args.kp + S::kBlockK - 1) / S::kBlockK;
  const size_t row_bytes = args.kp;

  // This thread copies piece `piece` of every kRowsPerPass-th row from `slot`. The rhs rows
  // of a warp are permuted where bytes are stored (mma_epilogue.cuh).
  const int slot = threadIdx.x / S::kPieces, piece = threadIdx.x % S::kPieces;
  const auto rhs_row = [](int place) {
    if constexpr (!is_bytes(kKind)) return place;
    return place / S::kWarpN * S::kWarpN + permuted_row<S::kColumns>(place % S::kWarpN);
  };
  const uint32_t destination = stages + piece_offset(slot, piece);

  auto scheduler = tile_scheduler<kKind>(args, blockIdx.x);
  for (; !scheduler.done(); scheduler.next()) {
    const Tile tile = scheduler.tile();
    const TileModuli moduli = tile_moduli<kKind>(tile.problem, args.moduli);
    const int first_row = tile.m * S::kBlockM, first_column = tile.n * S::kBlockN;
    const int lhs_row_0 = first_row + slot, rhs_row_0 = first_column + rhs_row(slot);
    // The accumulators' rows and columns of this lane begin here.
    const int row_0 = first_row + warp_m * S::kWarpM + lane / 4;
    const int column_0 = first_column + warp_n * S::kWarpN;
    [[maybe_unused]] typename S::Partial partial(shared + S::kPartialOffset, threadIdx.x);

    for (int part = 0; part < moduli.count; ++part) {
      const size_t operand = moduli.operand + part;
      const uint8_t* lhs = args.lhs + (operand * args.m + lhs_row_0) * row_bytes + piece * 16;
      const uint8_t* rhs = args.rhs + (operand * args.n + rhs_row_0) * row_bytes + piece * 16;

      // Rows and pieces outside the operands arrive as zeros; nothing outside is read.
      const auto copy_stage = [&](int k) {
        const uint32_t to = destination + k % S::kStages * S::kStageBytes;
        const bool inside = k * S::kBlockK + piece * 16 < args.kp;
#pragma unroll
        for (int pass = 0; pass < S::kLhsPasses; ++pass) {
          const int row = pass * S::kRowsPerPass;
          const bool valid = inside && lhs_row_0 + row < args.m;
          ptx::cp_async_16(to + row * 64, valid ? lhs + row * row_bytes : args.lhs, valid);
        }
#pragma unroll
        for (int pass = 0; pass < S::kRhsPasses; ++pass) {
          const int place = pass * S::kRowsPerPass, row = rhs_row(place);
          const bool valid = inside && rhs_row_0 + row < args.n;
          ptx::cp_async_16(to + (S::kBlockM + place) * 64, valid ? rhs + row * row_bytes : args.rhs,
                           valid);
        }
        lhs += S::kBlockK;
        rhs += S::kBlockK;
      };

      __syncthreads();  // every warp has left the stages of the product before
#pragma unroll
      for (int k = 0; k < S::kStages - 1; ++k) {
        if (k < k_tiles) copy_stage(k);
        ptx::cp_async_commit();
      }
      ptx::cp_async_wait<S::kStages - 2>();
      __syncthreads();

      const Modulus& modulus = args.constants.modulus[moduli.first + part];
      const uint32_t weights = epilogue_weights(args, scheduler, moduli.first + part);
      uint32_t acc[S::kFragmentsM][S::kFragmentsN][4] = {};

      // Main loop: the fragments of the next 32 k are loaded while the last ones are multiplied.
      Fragments<S> fragments[2];
      fragments[0].load(stages, warp_m, warp_n, lane, 0);
      for (int k = 0; k < k_tiles; ++k) {
        const uint32_t stage = stages + k % S::kStages * S::kStageBytes;
        fragments[1].load(stage, warp_m, warp_n, lane, 1);
        if (k + S::kStages - 1 < k_tiles) copy_stage(k + S::kStages - 1);
        ptx::cp_async_commit();
        fragments[0].multiply(acc);
        ptx::cp_async_wait<S::kStages - 2>();
        __syncthreads();
        if (k + 1 < k_tiles) {
          const uint32_t next = stages + (k + 1) % S::kStages * S::kStageBytes;
          fragments[0].load(next, warp_m, warp_n, lane, 0);
        }
        fragments[1].multiply(acc);
        if (kKind != MmaOutput::kFlaggedSums && (k + 1) % (kKBlock / S::kBlockK) == 0 &&
            k + 1 < k_tiles) {
#pragma unroll
          for (auto& row : acc) {
#pragma unroll
            for (auto& fragment : row) {
#pragma unroll
              for (uint32_t& a : fragment) a = fold(a, modulus);
            }
          }
        }
      }

      // Epilogue.
      if constexpr (is_bytes(kKind)) {
        uint8_t* const v = static_cast<uint8_t*>(args.output);
        const int column = column_0 + S::kColumns * (lane % 4);
#pragma unroll
        for (int i = 0; i < S::kFragmentsM; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = row_0 + i * 16 + half * 8;
            uint32_t word[S::kColumns / 4];
#pragma unroll
            for (int w = 0; w < S::kColumns / 4; ++w) {
              const auto &a = acc[i][2 * w], &b = acc[i][2 * w + 1];
              word[w] = residues(a[half * 2], a[half * 2 + 1], b[half * 2], b[half * 2 + 1],
                                 weights, modulus);
            }
            if (row < args.m && column < args.np) {
              void* const at =
                  v + (static_cast<size_t>(tile.problem) * args.m + row) * args.np + column;
              if constexpr (S::kColumns == 16) {
                *static_cast<uint4*>(at) = make_uint4(word[0], word[1], word[2], word[3]);
              } else {
                static_assert(S::kColumns == 8);
                *static_cast<uint2*>(at) = make_uint2(word[0], word[1]);
              }
            }
          }
        }
      } else if constexpr (kKind == MmaOutput::kFlaggedSums) {
        uint32_t* const sums = static_cast<uint32_t*>(args.output);
#pragma unroll
        for (int i = 0; i < S::kFragmentsM; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = row_0 + i * 16 + half * 8;
#pragma unroll
            for (int j = 0; j < S::kFragmentsN; ++j) {
              const int column = column_0 + j * 8 + lane % 4 * 2;
              if (row < args.m && column < args.np) {
                const size_t at =
                    (static_cast<size_t>(tile.problem) * args.m + row) * args.np + column;
                *reinterpret_cast<uint2*>(sums + at) =
                    make_uint2(acc[i][j][half * 2], acc[i][j][half * 2 + 1]);
              }
            }
          }
        }
      } else if (part + 1 < moduli.count) {
#pragma unroll
        for (int i = 0; i < S::kFragmentsM; ++i) {
#pragma unroll
          for (int j = 0; j < S::kFragmentsN; ++j) {
            const auto& a = acc[i][j];
            partial.push(i * S::kFragmentsN + j,
                         residues(a[0], a[1], a[2], a[3], weights, modulus));
          }
        }
      } else {
        uint32_t multiplier[kGroupSize];
        group_multipliers(args.constants, moduli, multiplier);
        uint32_t* const y = static_cast<uint32_t*>(args.output);
#pragma unroll
        for (int i = 0; i < S::kFragmentsM; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = row_0 + i * 16 + half * 8;
#pragma unroll
            for (int j = 0; j < S::kFragmentsN; ++j) {
              uint32_t pair[2];
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                const int byte = half * 2 + e;
                const uint32_t last = epilogue_float(acc[i][j][byte], weights, modulus);
                pair[e] = partial.join(i * S::kFragmentsN + j, byte, last, multiplier);
              }
              const int column = column_0 + j * 8 + lane % 4 * 2;
              if (row < args.m && column < args.np) {
                const size_t at =
                    (static_cast<size_t>(tile.problem) * args.m + row) * args.np + column;
                *reinterpret_cast<uint2*>(y + at) = make_uint2(pair[0], pair[1]);
              }
            }
          }
        }
      }
    }
  }
}

template <typename S, MmaOutput kKind>
Status launch(MmaArguments args, cudaStream_t stream) {
  const auto kernel = mma_sync_kernel<S, kKind>;
  constexpr int kSharedBytes = S::template kSharedBytes<kKind>;
  OZAKI_RETURN_IF_CUDA_ERROR(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  // A CTA a tile, up to the largest grid; as many as run at once where most may have no tile.
  int64_t most = INT32_MAX;
  if constexpr (is_flagged(kKind)) {
    OZAKI_RETURN_IF_ERROR(resident_ctas(kernel, S::kThreads, kSharedBytes, &most));
  }
  const uint32_t workers = std::min(args.grid.all_tiles(), most);
  args.grid.set_workers(workers);
  cudaLaunchConfig_t config = {};
  config.gridDim = workers;
  config.blockDim = S::kThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  OZAKI_RETURN_IF_CUDA_ERROR(cudaLaunchKernelEx(&config, kernel, args));
  return Status();
}

// The partial CRT keeps a group's residues beside the accumulators: more warps share a tile.
template <MmaOutput kKind>
Status launch(const MmaArguments& args, TileShape shape, cudaStream_t stream) {
  constexpr bool kOneModulus = kKind != MmaOutput::kPartialCrt;
  switch (shape) {
    case TileShape::kMmaSync128x128:
      return launch<Shape<128, 128, 2, kOneModulus ? 2 : 4, 3, kOneModulus ? 2 : 1>, kKind>(args,
                                                                                            stream);
    case TileShape::kMmaSync64x64:
      return launch<Shape<64, 64, 2, 2, 3, kOneModulus ? 4 : 3>, kKind>(args, stream);
    case TileShape::kMmaSync32x32:
      return launch<Shape<32, 32, 1, 1, 3, 7>, kKind>(args, stream);
    default:
      return Status("grouped_mma: not a tile shape of mma.sync");
  }
}

}  // namespace

Status launch_mma_sync(const MmaArguments& arguments, TileShape shape, MmaOutput kind,
                       cudaStream_t stream) {
  switch (kind) {
    case MmaOutput::kResidues:
      return launch<MmaOutput::kResidues>(arguments, shape, stream);
    case MmaOutput::kPartialCrt:
      return launch<MmaOutput::kPartialCrt>(arguments, shape, stream);
    case MmaOutput::kFlaggedResidues:
      return launch<MmaOutput::kFlaggedResidues>(arguments, shape, stream);
    case MmaOutput::kFlaggedSums:
      return launch<MmaOutput::kFlaggedSums>(arguments, shape, stream);
  }
  return Status("grouped_mma: not an output of mma.sync");
}

}  // namespace ozaki
