// Every output has a residue of each modulus to keep until its last product is done: a tile of 128
// x 128 outputs with 15 moduli keeps 224 KiB, beside its accumulators and the operands on their
// way. It takes a whole multiprocessor, on which nothing else runs while it reconstructs.
#include <string>

#include "common/classify.h"
#include "common/crt.h"
#include "common/scale.h"
#include "cuda/ablation/full_fused.h"
#include "cuda/launch.h"
#include "cuda/mma_heuristics.h"
#include "cuda/mma_sync_tile.cuh"
#include "cuda/pair_bytes.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace ozaki {
namespace {

using Tile128 = mma_sync::Shape<128, 128, 2, 4, 3, 1>;  // that of partial CRT by mma.sync

// The residues of a thread's outputs while the other moduli are multiplied, kWords words of four a
// modulus: the newest ones in registers, those before in shared memory.
template <int N>
class Residues {
 public:
  static constexpr int kWords = Tile128::kWords, kThreads = Tile128::kThreads;
  static constexpr int kInRegisters = 3, kInShared = N - 1 - kInRegisters;
  static constexpr int kSharedBytes = kInShared * kWords * kThreads * sizeof(uint32_t);

  __device__ __forceinline__ explicit Residues(void* shared)
      : older_(static_cast<uint32_t*>(shared) + threadIdx.x) {}

  __device__ __forceinline__ void push(int modulus, int word, uint32_t residues) {
    if (modulus >= kInRegisters) {
      older_[((modulus - kInRegisters) * kWords + word) * kThreads] =
          newer_[kInRegisters - 1][word];
    }
#pragma unroll
    for (int i = kInRegisters - 1; i > 0; --i) newer_[i][word] = newer_[i - 1][word];
    newer_[0][word] = residues;
  }

  // Once all but the last modulus have been pushed.
  __device__ __forceinline__ uint32_t get(int modulus, int word) const {
    return modulus < kInShared ? older_[(modulus * kWords + word) * kThreads]
                               : newer_[N - 2 - modulus][word];
  }

 private:
  uint32_t* older_;
  uint32_t newer_[kInRegisters][kWords] = {};
};

struct Arguments {
  FullFused of;
  TileGrid grid;  // a problem a batch element
  EpilogueConstants constants;
};

// The residues of acc[w / kFragmentsN][w % kFragmentsN].
__device__ __forceinline__ uint32_t word_of(const mma_sync::Accumulator<Tile128>& acc, int w,
                                            const EpilogueConstants& constants, int modulus) {
  const auto& a = acc[w / Tile128::kFragmentsN][w % Tile128::kFragmentsN];
  return residues(a[0], a[1], a[2], a[3], constants.weights[modulus], constants.modulus[modulus]);
}

template <int N>
constexpr int kSharedBytes = Tile128::kRingBytes + Residues<N>::kSharedBytes;

// An output of a row or column with non-finite elements, or one that is no normal number.
template <int N>
__device__ __noinline__ uint64_t rare_output(const FullFused& of,
                                             const uint32_t (&y)[Crt<N>::kGroups], int64_t batch,
                                             int64_t i, int64_t j) {
  const int32_t scale_a = of.scale_a[batch * of.m + i], scale_b = of.scale_b[batch * of.n + j];
  if (!is_sentinel(scale_a) && !is_sentinel(scale_b)) {
    return round_to_float64(reconstruct<N>(y), scale_a + scale_b);
  }
  if (scale_a == kScaleNaN || scale_b == kScaleNaN) return kNaNBits;
  const auto* a = reinterpret_cast<const uint64_t*>(of.a) + (batch * of.m + i) * of.k;
  const auto* b = reinterpret_cast<const uint64_t*>(of.b) + batch * of.k * of.n + j;
  SpecialSum sum;
  for (int64_t h = 0; h < of.k; ++h) sum.add(a[h], b[h * of.n]);
  return sum.bits();
}

template <int N>
__global__ void __launch_bounds__(Tile128::kThreads, 1)
    full_fused_kernel(const __grid_constant__ Arguments args) {
  using S = Tile128;
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t stages = ptx::shared_address(shared);
  const FullFused& of = args.of;
  const int m = static_cast<int>(of.m), n = static_cast<int>(of.n), kp = static_cast<int>(of.kp);

  const uint32_t batch = blockIdx.x / args.grid.tiles;
  const Tile tile = tile_of(args.grid, batch, blockIdx.x - batch * args.grid.tiles);
  const int first_row = tile.m * S::kBlockM, first_column = tile.n * S::kBlockN;

  const mma_sync::Position<S> position;
  Residues<N> kept(shared + S::kRingBytes);
  mma_sync::Accumulator<S> acc;
#pragma unroll 1
  for (int i = 0; i < N; ++i) {
    const size_t operand = size_t{batch} * N + i;
    const mma_sync::Operands operands = {
        of.lhs + operand * m * kp, of.rhs + operand * n * kp, m, n, kp, kp};
    mma_sync::multiply<S, false, false>(operands, first_row, first_column, stages,
                                        args.constants.modulus[i], position, acc);
    if (i + 1 == N) break;
#pragma unroll
    for (int w = 0; w < S::kWords; ++w) kept.push(i, w, word_of(acc, w, args.constants, i));
  }

#pragma unroll
  for (int w = 0; w < S::kWords; ++w) {
    uint2 v[N];
#pragma unroll
    for (int i = 0; i + 1 < N; ++i) v[i].x = kept.get(i, w);
    v[N - 1].x = word_of(acc, w, args.constants, N - 1);
    const int column = first_column + position.column(w % S::kFragmentsN);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + position.row(w / S::kFragmentsN, half);
      if (row >= m) continue;
      uint32_t pairs[(N + 1) / 2];
      pair_bytes(v, 2 * half, pairs);
      const int32_t scale_a = of.scale_a[int64_t{batch} * m + row];
      const int64_t at = (int64_t{batch} * m + row) * n;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (column + e >= n) continue;
        uint32_t y[Crt<N>::kGroups];
        partial_crt<N>(pairs, e == 1, y);
        const int32_t scale_b = of.scale_b[int64_t{batch} * n + column + e];
        // In unsigned arithmetic: sentinels may overflow.
        const int scale = static_cast<int>(static_cast<uint32_t>(scale_a) + scale_b);
        uint64_t bits;
        const bool normal = round_to_normal(reconstruct<N>(y), scale, bits);
        if (!normal || is_sentinel(min(scale_a, scale_b))) {
          bits = rare_output<N>(of, y, batch, row, column + e);
        }
        reinterpret_cast<uint64_t*>(of.c)[at + column + e] = bits;
      }
    }
  }
}

template <int N>
Status launch_moduli(const FullFused& product, const Device& device, cudaStream_t stream) {
  if (kSharedBytes<N> > device.shared_bytes_block) {
    return Status("full_fused: a tile needs " + std::to_string(kSharedBytes<N>) +
                  " bytes of shared memory, a block of this device has " +
                  std::to_string(device.shared_bytes_block));
  }
  Arguments args = {product, {}, epilogue_constants(N, ModulusSet::kReal)};
  GroupedMma mma = {};
  mma.batch = product.batch, mma.moduli = 1;
  mma.m = product.m, mma.n = product.n, mma.kp = product.kp;
  if (!make_tile_grid(mma, TileShape::kMmaSync128x128, &args.grid)) {
    return Status("full_fused: more than 2^30 tiles in a batch element");
  }
  return launch("full_fused_kernel", full_fused_kernel<N>,
                {args.grid.all_tiles(), Tile128::kThreads, kSharedBytes<N>}, device, stream, args);
}

}  // namespace

Status launch_full_fused(const FullFused& product, int moduli, const Device& device,
                         cudaStream_t stream) {
  if (product.k > kKBlock) {
    return Status("full_fused: k is " + std::to_string(product.k) + ", at most " +
                  std::to_string(kKBlock) + " is supported");
  }
  switch (moduli) {
    case 9:
      return launch_moduli<9>(product, device, stream);
    case 14:
      return launch_moduli<14>(product, device, stream);
    case 15:
      return launch_moduli<15>(product, device, stream);
  }
  return Status("full_fused: the number of moduli is " + std::to_string(moduli) +
                ", built are 9, 14 and 15");
}

}  // namespace ozaki
