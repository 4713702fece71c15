// Grouped INT8 matrix product for sm_80 and later, with the same epilogue as on sm_90a.
#include <algorithm>
#include <cstdint>

#include "launch.h"
#include "mma_launch.h"
#include "mma_sync_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "tile_scheduler.cuh"

namespace ozaki {
namespace {

using mma_sync::Shape;

// Shared memory: a ring of stages; for the partial CRT a group's first residues.
template <typename S>
using Partial = PartialCrt<S::kWords, S::kThreads>;
template <typename S, MmaOutput kKind>
constexpr int kSharedBytes =
    S::kRingBytes + (kKind == MmaOutput::kPartialCrt ? Partial<S>::kSharedBytes : 0);

template <typename S, MmaOutput kKind>
__global__ void __launch_bounds__(S::kThreads, S::kCtasPerMultiprocessor)
    mma_sync_kernel(const __grid_constant__ MmaArguments args) {
  // Of the 100 KiB of an sm_86, sm_89 or sm_120 multiprocessor; a CTA takes 1 KiB more than its
  // own.
  static_assert(S::kCtasPerMultiprocessor * (S::kRingBytes + 1024) <= 100 * 1024);
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t stages = ptx::shared_address(shared);
  const mma_sync::Position<S> position;

  const uint8_t* const all_rhs = lhs_is_rhs<kKind>(args) ? args.lhs : args.rhs;
  auto scheduler = tile_scheduler<kKind>(args, blockIdx.x);
  for (; !scheduler.done(); scheduler.next()) {
    const auto tile = scheduler.tile();
    const int k_first = k_begin(tile), k_count = k_end(args, tile) - k_first;
    const TileModuli moduli = tile_moduli<kKind>(tile.problem, args.moduli);
    const int first_row = tile.m * S::kBlockM, first_column = tile.n * S::kBlockN;
    const size_t plane = static_cast<size_t>(tile.problem) * args.m * args.np;
    [[maybe_unused]] Partial<S> partial(shared + S::kRingBytes, threadIdx.x);

    for (int part = 0; part < moduli.count; ++part) {
      const size_t operand = moduli.operand + part;
      const Modulus& modulus = args.constants.modulus[moduli.first + part];
      const uint32_t weights = epilogue_weights(args, scheduler, moduli.first + part);
      const mma_sync::Operands operands = {args.lhs + operand * args.m * args.kp + k_first,
                                           all_rhs + operand * args.n * args.kp + k_first,
                                           args.m,
                                           args.n,
                                           args.kp,
                                           k_count};
      mma_sync::Accumulator<S> acc;
      mma_sync::multiply<S, is_bytes(kKind), kKind != MmaOutput::kFlaggedSums>(
          operands, first_row, first_column, stages, modulus, position, acc);

      // Epilogue. word(i, j, e) belongs to acc[i][j][e], where rhs rows are not permuted.
      [[maybe_unused]] const auto store_words = [&](const auto& word) {
        mma_sync::store_words<S>(position, first_row, first_column,
                                 static_cast<uint32_t*>(args.output) + plane, args.m, args.np,
                                 word);
      };
      if constexpr (is_bytes(kKind)) {
        mma_sync::store_residues<S>(acc, position, first_row, first_column, weights, modulus,
                                    static_cast<uint8_t*>(args.output) + plane, args.m, args.np);
      } else if constexpr (kKind == MmaOutput::kFlaggedSums) {
        store_words([&](int i, int j, int e) { return acc[i][j][e]; });
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
        store_words([&](int i, int j, int e) {
          const uint32_t last = epilogue_float(acc[i][j][e], weights, modulus);
          return partial.join(i * S::kFragmentsN + j, e, last, multiplier);
        });
      }
    }
  }
}

template <typename S, MmaOutput kKind>
Status launch_shape(MmaArguments args, const Device& device, cudaStream_t stream) {
  const auto kernel = mma_sync_kernel<S, kKind>;
  LaunchShape shape = {0, S::kThreads, kSharedBytes<S, kKind>};
  // A CTA a tile, up to the largest grid; as many as run at once where most may have no tile.
  int most = INT32_MAX;
  if constexpr (is_flagged(kKind)) {
    OZAKI_RETURN_IF_ERROR(resident_clusters(address_of(kernel), shape, device, &most));
  }
  shape.ctas = std::min<int64_t>(args.grid.all_tiles(), most);
  args.grid.set_workers(static_cast<uint32_t>(shape.ctas));
  return launch("mma_sync_kernel", kernel, shape, device, stream, args);
}

// The partial CRT keeps a group's residues beside the accumulators: more warps share a tile.
template <MmaOutput kKind>
Status launch_kind(const MmaArguments& args, TileShape shape, const Device& device,
                   cudaStream_t stream) {
  constexpr bool kOneModulus = kKind != MmaOutput::kPartialCrt;
  switch (shape) {
    case TileShape::kMmaSync256x128:
      if constexpr (kKind == MmaOutput::kResidues) {
        return launch_shape<Shape<256, 128, 4, 2, 4, 1>, kKind>(args, device, stream);
      }
      return Status("grouped_mma: tiles of 256 x 128 are for residues alone");
    case TileShape::kMmaSync128x128:
      return launch_shape<Shape<128, 128, 2, kOneModulus ? 2 : 4, 3, kOneModulus ? 2 : 1>, kKind>(
          args, device, stream);
    case TileShape::kMmaSync64x64:
      return launch_shape<Shape<64, 64, 2, 2, 3, kOneModulus ? 4 : 3>, kKind>(args, device, stream);
    case TileShape::kMmaSync32x32:
      return launch_shape<Shape<32, 32, 1, 1, 3, 7>, kKind>(args, device, stream);
    default:
      return Status("grouped_mma: not a tile shape of mma.sync");
  }
}

}  // namespace

Status launch_mma_sync(const MmaArguments& arguments, TileShape shape, MmaOutput kind,
                       const Device& device, cudaStream_t stream) {
  return with_constant(kind, [&](auto constant) {
    return launch_kind<constant()>(arguments, shape, device, stream);
  });
}

}  // namespace ozaki
