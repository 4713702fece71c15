// Grouped INT8 matrix product for sm_90a: one persistent launch over all tiles of all problems. A
// producer thread streams operand tiles into a ring of shared-memory stages with bulk tensor
// copies; two consumer warpgroups multiply them with wgmma, reduce the accumulators modulo p and
// store.
#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "launch.h"
#include "mma_epilogue.cuh"
#include "mma_launch.h"
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tensor_map.h"
#include "tile_scheduler.cuh"

namespace ozaki {
namespace {

// Rows of the rhs that one copy brings, and that are permuted among themselves.
constexpr int kRhsRows = 64;

template <int kBlockN_, int kStages_, int kCluster_>
struct Shape {
  static constexpr int kConsumers = 2;  // warpgroups of 64 rows
  static constexpr int kBlockM = 64 * kConsumers, kBlockN = kBlockN_, kBlockK = 128;
  static constexpr int kStages = kStages_;
  static constexpr int kCluster = kCluster_;  // CTAs with neighbouring tiles along m, one rhs tile
  static constexpr int kThreads = 128 * (kConsumers + 1);

  static constexpr int kLhsBytes = kBlockM * kBlockK, kRhsBytes = kBlockN * kBlockK;
  static constexpr int kStageBytes = kLhsBytes + kRhsBytes;

  // Shared memory: a ring of stages, each [lhs tile | rhs tile]; for the partial CRT a group's
  // first residues; barriers.
  using Partial = PartialCrt<kBlockN / 8, 128 * kConsumers>;
  static constexpr int kPartialOffset = kStages * kStageBytes;
  template <MmaOutput kKind>
  static constexpr int kBarrierOffset =
      kPartialOffset + (kKind == MmaOutput::kPartialCrt ? Partial::kSharedBytes : 0);
  template <MmaOutput kKind>
  static constexpr int kSharedBytes = kBarrierOffset<kKind> + 2 * kStages * sizeof(uint64_t);

  static_assert(kBlockK == 128, "a row of a stage is one 128-byte swizzle line");
  static_assert(kKBlock % kBlockK == 0, "accumulators are folded between stages");
  static_assert(kBlockN % (kRhsRows * kCluster) == 0, "each CTA copies whole blocks of rhs rows");
  static_assert(kSharedBytes<MmaOutput::kPartialCrt> <= 227 * 1024, "more than a CTA may have");
  static_assert(kLhsBytes % 1024 == 0 && kRhsBytes % 1024 == 0, "the swizzle repeats every 1024");
};

struct RhsMaps {
  CUtensorMap plain;     // (k, row, operand)
  CUtensorMap permuted;  // (k, e, q, j, operand), see encode_permuted
};

struct TensorMaps {
  CUtensorMap lhs;  // (k, row, operand)
  RhsMaps rhs, lhs_as_rhs;
};

// Columns whose rhs rows are permuted on their way to shared memory: whole blocks. The copy's box
// cannot end inside a block, so that the rest keeps its order and the epilogue permutes bytes.
template <MmaOutput kKind>
__host__ __device__ constexpr int permuted_columns(int n) {
  return is_bytes(kKind) ? n / kRhsRows * kRhsRows : 0;
}

// Position in the ring of stages, the same sequence in the producer and the consumers.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// Code for another architecture is a stub that cannot be launched with so many threads
// (wgmma_available).
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define OZAKI_WGMMA_LAUNCH_BOUNDS __launch_bounds__(32)
#else
#define OZAKI_WGMMA_LAUNCH_BOUNDS __launch_bounds__(S::kThreads, 1)
#endif

template <typename S, MmaOutput kKind>
__global__ void OZAKI_WGMMA_LAUNCH_BOUNDS wgmma_kernel(const __grid_constant__ TensorMaps maps,
                                                       const __grid_constant__ MmaArguments args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t stages = ptx::shared_address(shared);
  const uint32_t barriers = stages + S::template kBarrierOffset<kKind>;
  const auto full = [&](int stage) { return barriers + stage * 8; };
  const auto empty = [&](int stage) { return barriers + (S::kStages + stage) * 8; };

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      ptx::mbarrier_init(full(stage), 1);
      ptx::mbarrier_init(empty(stage), S::kConsumers * S::kCluster);
    }
    ptx::mbarrier_init_fence();
  }
  if constexpr (S::kCluster > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  ptx::wait_for_previous();
  ptx::launch_dependents();

  // A cluster takes one tile of kCluster * kBlockM rows, a CTA its part of it.
  const uint32_t rank = S::kCluster > 1 ? ptx::cluster_cta_rank() : 0;
  const auto make_scheduler = [&] { return tile_scheduler<kKind>(args, blockIdx.x / S::kCluster); };
  const auto first_row = [&](const Tile& tile) {
    return (tile.m * S::kCluster + static_cast<int>(rank)) * S::kBlockM;
  };
  // The stages of a tile.
  const auto first_stage = [](const auto& tile) { return k_begin(tile) / S::kBlockK; };
  const auto end_stage = [&](const auto& tile) {
    return (k_end(args, tile) + S::kBlockK - 1) / S::kBlockK;
  };
  // The stage in which a list's next tile has arrived.
  const auto second_stage = [&](const auto& tile) {
    return is_flagged(kKind) ? min(first_stage(tile) + 1, end_stage(tile) - 1) : 0;
  };
  const int n_permuted = permuted_columns<kKind>(args.n);
  RingPosition<S::kStages> ring;

  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) {
    // ---- Producer -------------------------------------------------------------------------------
    ptx::registers_decrease<56>();
    if (threadIdx.x == 0) {
      constexpr int kCopies = S::kBlockN / kRhsRows / S::kCluster;
      auto scheduler = make_scheduler();
      const RhsMaps& rhs_maps = lhs_is_rhs<kKind>(args) ? maps.lhs_as_rhs : maps.rhs;
      auto next = scheduler.tile();
      while (!scheduler.done()) {
        const auto tile = next;
        const int k_first = first_stage(tile), k_tiles = end_stage(tile);
        const TileModuli moduli = tile_moduli<kKind>(tile.problem, args.moduli);
        for (int operand = moduli.operand; operand < moduli.operand + moduli.count; ++operand) {
#pragma unroll 1
          for (int k = k_first; k < k_tiles; ++k, ring.advance()) {
            ptx::mbarrier_wait(empty(ring.stage), ring.parity ^ 1);
            ptx::mbarrier_arrive_expect_bytes(full(ring.stage), S::kStageBytes);
            const uint32_t lhs = stages + ring.stage * S::kStageBytes, rhs = lhs + S::kLhsBytes;
            ptx::tma_load_3d<1>(lhs, &maps.lhs, full(ring.stage), k * S::kBlockK, first_row(tile),
                                operand);
#pragma unroll
            for (int copy = 0; copy < kCopies; ++copy) {
              const int block = rank * kCopies + copy;
              const int row = tile.n * S::kBlockN + block * kRhsRows;
              const uint32_t destination = rhs + block * kRhsRows * S::kBlockK;
              if (row < n_permuted) {
                ptx::tma_load_5d<S::kCluster>(destination, &rhs_maps.permuted, full(ring.stage),
                                              k * S::kBlockK, row, 0, 0, operand);
              } else {
                ptx::tma_load_3d<S::kCluster>(destination, &rhs_maps.plain, full(ring.stage),
                                              k * S::kBlockK, row, operand);
              }
            }
            // The next tile is known before this one's copies end, as in the consumers.
            if (k == k_first && operand == moduli.operand) scheduler.next();
            if (k == second_stage(tile) && operand == moduli.operand) next = scheduler.tile();
          }
        }
      }
    }
  } else {
    // ---- Consumers ------------------------------------------------------------------------------
    ptx::registers_increase<224>();
    using Mma = ptx::Wgmma<S::kBlockN>;
    const int consumer = warpgroup - 1, thread = threadIdx.x % 128, lane = thread % 32;
    // A stage is free when the consumers of every CTA that its copies reach have read it.
    const auto release = [&](int stage) {
      if constexpr (S::kCluster > 1) {
        if (thread < S::kCluster) ptx::mbarrier_arrive_at(empty(stage), thread);
      } else {
        if (thread == 0) ptx::mbarrier_arrive(empty(stage));
      }
    };

    auto scheduler = make_scheduler();
    auto next = scheduler.tile();
    while (!scheduler.done()) {
      const auto tile = next;
      const int k_first = first_stage(tile), k_tiles = end_stage(tile);
      const TileModuli moduli = tile_moduli<kKind>(tile.problem, args.moduli);
      const int row = first_row(tile) + consumer * 64 + thread / 32 * 16 + lane / 4;
      const size_t first_output = (static_cast<size_t>(tile.problem) * args.m + row) * args.np;
      [[maybe_unused]]
      typename S::Partial partial(shared + S::kPartialOffset, consumer * 128 + thread);

      for (int part = 0; part < moduli.count; ++part) {
        const Modulus& modulus = args.constants.modulus[moduli.first + part];
        const uint32_t weights = epilogue_weights(args, scheduler, moduli.first + part);
        typename Mma::Accumulator acc;

        // Main loop, one group of wgmmas in flight.
        for (int block = k_first; block < k_tiles; block += kKBlock / S::kBlockK) {
          const int block_end = min(block + kKBlock / S::kBlockK, k_tiles);
          int previous = -1;
          for (int k = block; k < block_end; ++k) {
            ptx::mbarrier_wait(full(ring.stage), ring.parity);
            const uint32_t lhs = stages + ring.stage * S::kStageBytes, rhs = lhs + S::kLhsBytes;
            const uint64_t a = ptx::wgmma_descriptor(lhs + consumer * 64 * S::kBlockK);
            const uint64_t b = ptx::wgmma_descriptor(rhs);
            ptx::wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < S::kBlockK / 32; ++kk) {
              Mma::mma(acc, a + kk * 2, b + kk * 2, k > k_first || kk > 0);
            }
            ptx::wgmma_commit();
            ptx::wgmma_wait<1>();
            if (previous >= 0) release(previous);
            previous = ring.stage;
            // The next tile's divisions hide behind the matrix unit, and so does what they wait
            // for.
            if (k == k_first && part == 0) scheduler.next();
            if (k == second_stage(tile) && part == 0) next = scheduler.tile();
            ring.advance();
          }
          ptx::wgmma_wait<0>();
          release(previous);
          if (kKind != MmaOutput::kFlaggedSums && block_end < k_tiles) {
#pragma unroll
            for (uint32_t& a : acc) a = fold(a, modulus);
          }
        }

        // Epilogue. In both halves, rows `row` and row + 8, the accumulators of eight columns
        // follow those of the eight before by 4.
        if constexpr (is_bytes(kKind)) {
          const int column = tile.n * S::kBlockN + 16 * (lane % 4);
          uint8_t* const v = static_cast<uint8_t*>(args.output) + first_output;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int block = 0; block < S::kBlockN / 64; ++block) {
              uint32_t word[4];
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const int at = (block * 8 + i * 2) * 4 + half * 2;
                word[i] =
                    residues(acc[at], acc[at + 1], acc[at + 4], acc[at + 5], weights, modulus);
              }
              if (tile.n * S::kBlockN + block * 64 >= n_permuted) transpose_quad(word, lane);
              if (row + half * 8 < args.m && column + block * 64 < args.np) {
                const size_t at = static_cast<size_t>(half * 8) * args.np + column + block * 64;
                *reinterpret_cast<uint4*>(v + at) = make_uint4(word[0], word[1], word[2], word[3]);
              }
            }
          }
        } else if constexpr (kKind == MmaOutput::kFlaggedSums) {
          // Neighbouring lanes swap pairs of columns for four in a row: 64 bytes a row and store.
          const bool odd = lane % 2 != 0;
          const int column = tile.n * S::kBlockN + 8 * (lane % 2) + 4 * (lane % 4 / 2);
          uint32_t* const sums = static_cast<uint32_t*>(args.output) + first_output;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < S::kBlockN / 8; i += 2) {
              const uint32_t* const x = acc + 4 * i + half * 2;
              const uint32_t other[] = {__shfl_xor_sync(~0u, odd ? x[0] : x[4], 1),
                                        __shfl_xor_sync(~0u, odd ? x[1] : x[5], 1)};
              if (row + half * 8 < args.m && column + i * 8 < args.np) {
                const size_t at = static_cast<size_t>(half * 8) * args.np + column + i * 8;
                *reinterpret_cast<uint4*>(sums + at) =
                    odd ? make_uint4(other[0], other[1], x[4], x[5])
                        : make_uint4(x[0], x[1], other[0], other[1]);
              }
            }
          }
        } else if (part + 1 < moduli.count) {
#pragma unroll
          for (int i = 0; i < S::kBlockN / 8; ++i) {
            partial.push(i, residues(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3],
                                     weights, modulus));
          }
        } else {
          uint32_t multiplier[kGroupSize];
          group_multipliers(args.constants, moduli, multiplier);
          const int column = tile.n * S::kBlockN + 2 * (lane % 4);
          uint32_t* const y = static_cast<uint32_t*>(args.output) + first_output;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < S::kBlockN / 8; ++i) {
              uint32_t pair[2];
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                const int byte = half * 2 + e;
                const uint32_t last = epilogue_float(acc[4 * i + byte], weights, modulus);
                pair[e] = partial.join(i, byte, last, multiplier);
              }
              if (row + half * 8 < args.m && column + i * 8 < args.np) {
                const size_t at = static_cast<size_t>(half * 8) * args.np + column + i * 8;
                *reinterpret_cast<uint2*>(y + at) = make_uint2(pair[0], pair[1]);
              }
            }
          }
        }
      }
    }
  }

  // No CTA may leave while copies or arrivals of its neighbour are on their way to it.
  if constexpr (S::kCluster > 1) ptx::cluster_sync();
#endif
}

// Boxes of 64 rows in the order in which the consumers want them (mma_epilogue.cuh): the row is
// e + 16q + 2j, e < 2 fastest, then q < 4, then j < 8. The three strides overlap: e runs over every
// row at which such a box may start.
Status encode_permuted(CUtensorMap* map, const uint8_t* rhs, const MmaArguments& args) {
  const cuuint64_t k = args.kp, rows = args.n, operands = cuuint64_t{1} * args.batch * args.moduli;
  return encode_tensor_map<5>(map, rhs, {k, rows - kRhsRows + 2, 4, 8, operands},
                              {k, 16 * k, 2 * k, rows * k}, {128, 2, 4, 8, 1});
}

template <MmaOutput kKind>
Status encode_rhs(RhsMaps* maps, const uint8_t* rhs, const MmaArguments& args) {
  const cuuint64_t k = args.kp, n = args.n, operands = cuuint64_t{1} * args.batch * args.moduli;
  OZAKI_RETURN_IF_ERROR(
      encode_tensor_map<3>(&maps->plain, rhs, {k, n, operands}, {k, n * k}, {128, kRhsRows, 1}));
  if (permuted_columns<kKind>(args.n) == 0) return Status();
  return encode_permuted(&maps->permuted, rhs, args);
}

template <typename S, MmaOutput kKind>
Status launch_shape(MmaArguments args, const Device& device, cudaStream_t stream) {
  const cuuint64_t k = args.kp, m = args.m;
  const cuuint64_t operands = cuuint64_t{1} * args.batch * args.moduli;
  TensorMaps maps = {};
  OZAKI_RETURN_IF_ERROR(encode_tensor_map<3>(&maps.lhs, args.lhs, {k, m, operands}, {k, m * k},
                                             {128, S::kBlockM, 1}));
  OZAKI_RETURN_IF_ERROR(encode_rhs<kKind>(&maps.rhs, args.rhs, args));
  if (args.symmetry != nullptr) {
    OZAKI_RETURN_IF_ERROR(encode_rhs<kKind>(&maps.lhs_as_rhs, args.lhs, args));
  }

  // Persistent: no more clusters than the device holds at once, or the last ones would wait for
  // the whole share of an earlier one.
  const auto kernel = wgmma_kernel<S, kKind>;
  LaunchShape shape = {0, S::kThreads, S::template kSharedBytes<kKind>, S::kCluster, true};
  int resident = 0;
  OZAKI_RETURN_IF_ERROR(resident_clusters(address_of(kernel), shape, device, &resident));
  args.grid.set_workers(std::min<int64_t>(resident, args.grid.all_tiles()));
  shape.ctas = int64_t{args.grid.workers} * S::kCluster;
  return launch("wgmma_kernel", kernel, shape, device, stream, maps, args);
}

template <MmaOutput kKind>
Status launch_kind(const MmaArguments& args, TileShape shape, const Device& device,
                   cudaStream_t stream) {
  switch (shape) {
    case TileShape::kWgmma128x256:
      return launch_shape<Shape<256, 4, 1>, kKind>(args, device, stream);
    case TileShape::kWgmma128x256Cluster:
      return launch_shape<Shape<256, 4, 2>, kKind>(args, device, stream);
    case TileShape::kWgmma128x128:
      return launch_shape<Shape<128, 6, 1>, kKind>(args, device, stream);
    case TileShape::kWgmma128x64:
      return launch_shape<Shape<64, 8, 1>, kKind>(args, device, stream);
    default:
      return Status("grouped_mma: not a tile shape of wgmma");
  }
}

}  // namespace

Status wgmma_available(const Device& device, bool* available) {
  using S = Shape<256, 4, 1>;
  const void* const kernel = address_of(wgmma_kernel<S, MmaOutput::kResidues>);
  static PerKernel kept;
  int threads = 0;
  OZAKI_RETURN_IF_ERROR(kept.get(kernel, device, &threads, [kernel](int* number) {
    cudaFuncAttributes attributes;
    OZAKI_RETURN_IF_CUDA_ERROR(cudaFuncGetAttributes(&attributes, kernel));
    *number = attributes.maxThreadsPerBlock;
    return Status();
  }));
  *available = threads >= S::kThreads;
  return Status();
}

Status launch_wgmma(const MmaArguments& arguments, TileShape shape, MmaOutput kind,
                    const Device& device, cudaStream_t stream) {
  return with_constant(kind, [&](auto constant) {
    return launch_kind<constant()>(arguments, shape, device, stream);
  });
}

}  // namespace ozaki
