#include <utility>

#include "chain_sum.cuh"
#include "flagged_walk.cuh"
#include "launch.h"
#include "ptx/dependent_launch.cuh"
#include "ptx/mma_f64.cuh"

namespace ozaki {
namespace {

// A CTA sums a block of outputs, a warp a part of it in tiles of 8 x 8.
constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kTileRows = 4, kTileColumns = 2;
constexpr int kWarpsAlongRows = 4, kWarpsAlongColumns = 4;
constexpr int kRows = kWarpsAlongRows * kTileRows * 8;
constexpr int kColumns = kWarpsAlongColumns * kTileColumns * 8;
constexpr int kBlocks = kTile / kColumns;  // of a tile
constexpr int kDepth = 16, kStages = 3;
static_assert(kWarpsAlongRows * kWarpsAlongColumns == kWarps);
static_assert(kTile == kRows && kTile % kColumns == 0 && kDepth % kChain == 0);

// kRowCount rows of an operand, or columns, as they lie in memory: along k, or along the rows. Lanes
// that read four k of four rows use all banks.
template <bool kContiguous, int kRowCount>
struct Stage {
  static constexpr int kPitch = (kContiguous ? kDepth : kRowCount) + 4;
  using Copies = BlockCopies<kContiguous, kRowCount, kDepth, kPitch, kThreads>;
  double at[(kContiguous ? kRowCount : kDepth) * kPitch];

  __device__ __forceinline__ double operator()(int row, int h) const {
    return at[kContiguous ? row * kPitch + h : h * kPitch + row];
  }
};

template <bool kContiguousA, bool kContiguousB>
struct Shared {
  using A = Stage<kContiguousA, kRows>;
  using B = Stage<kContiguousB, kColumns>;
  struct {
    A a;
    B b;
  } stage[kStages];
  int count;
};

// A block of outputs: its first row and column, and what it needs of k.
struct Block {
  uint32_t batch, row, column, begin, end;
};

// Of a warp's tiles of outputs.
template <int kCount>
using Sums = double[kCount][kTileColumns][2];

template <int kCount>
__device__ __forceinline__ void add(double (*sum)[kTileColumns][2], const Sums<kCount>& other) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int j = 0; j < kTileColumns; ++j) {
      sum[i][j][0] = __dadd_rn(sum[i][j][0], other[i][j][0]);
      sum[i][j][1] = __dadd_rn(sum[i][j][1], other[i][j][1]);
    }
  }
}

// All outputs of a block; those wanted are stored.
template <bool kContiguousA, bool kContiguousB>
__device__ __forceinline__ void sum_block(const ChainSum& args, Block block,
                                          Shared<kContiguousA, kContiguousB>& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int own_row = warp / kWarpsAlongColumns * kTileRows * 8 + lane / 4;
  const int first_column = warp % kWarpsAlongColumns * kTileColumns * 8;
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  const auto rows_left = [&] { return static_cast<int>(m - block.row); };
  const auto columns_left = [&] { return static_cast<int>(n - block.column); };

  using Memory = Shared<kContiguousA, kContiguousB>;
  const typename Memory::A::Copies copies_a(
      args.a + args.a_layout.offset(block.batch, block.row, 0), args.a_layout, rows_left());
  const typename Memory::B::Copies copies_b(
      args.b + args.b_layout.offset(block.batch, block.column, 0), args.b_layout, columns_left());
  const auto request_stage = [&](uint32_t first, int stage) {
    if (first < block.end) {
      request(copies_a, args.a_paired, first, shared.stage[stage].a.at);
      request(copies_b, args.b_paired, first, shared.stage[stage].b.at);
    }
    ptx::cp_async_commit();
  };
  __syncthreads();  // the block before has left the stages
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) request_stage(block.begin + s * kDepth, s);

  Sums<kTileRows> sum = {}, of_group = {};
  uint32_t group = 0;
  int stage = 0;
  for (uint32_t first = block.begin; first < block.end; first += kDepth) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
    request_stage(first + (kStages - 1) * kDepth, stage == 0 ? kStages - 1 : stage - 1);
    const auto& [of_a, of_b] = shared.stage[stage];
#pragma unroll 1
    for (int chain = 0; chain < kDepth; chain += kChain) {
      const uint32_t of = (first + chain) / kChain >> args.log2_group;
      if (of != group) {
        add(sum, of_group);
        memset(of_group, 0, sizeof of_group);
        group = of;
      }
      double b[kTileColumns][2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int j = 0; j < kTileColumns; ++j) {
          b[j][h] = of_b(first_column + lane / 4 + 8 * j, chain + 4 * h + lane % 4);
        }
      }
      // Two rows of tiles at a time: their chains leave the registers before the next ones begin.
#pragma unroll
      for (int i = 0; i < kTileRows; i += 2) {
        double a[4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int l = 0; l < 2; ++l) {
            a[2 * h + l] = of_a(own_row + 8 * (i + l), chain + 4 * h + lane % 4);
          }
        }
        Sums<2> acc;
#pragma unroll
        for (int j = 0; j < kTileColumns; ++j) ptx::mma_m16n8k8(acc[0][j], acc[1][j], a, b[j]);
        add(of_group + i, acc);
      }
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  add(sum, of_group);
  ptx::cp_async_wait<0>();

  const int64_t np = padded(n), first_row = block.batch * m + block.row;
#pragma unroll
  for (int i = 0; i < kTileRows; ++i) {
    const int row = own_row + 8 * i;
    if (row >= rows_left()) continue;
    const uint8_t* const rung = args.rung + (first_row + row) * np + block.column;
    double* const c = args.c + (first_row + row) * n + block.column;
#pragma unroll
    for (int j = 0; j < kTileColumns; ++j) {
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const int column = first_column + 8 * j + lane % 4 * 2 + l;
        if (column < columns_left() && (args.flagged.wanted >> (rung[column] & 31) & 1) != 0) {
          store(sum[i][j][l], c + column);
        }
      }
    }
  }
}

template <bool kContiguousA, bool kContiguousB>
__global__ void __launch_bounds__(kThreads, 1)
    chain_sum_dense_kernel(const __grid_constant__ ChainSum args, int64_t blocks) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kContiguousA, kContiguousB>*>(memory);
  ptx::launch_dependents();
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows, np = padded(n);
  for_parts_of_flagged<kThreads, kBlocks>(args.flagged, blocks, [&](const PartOfTile& at) {
    const int64_t column = at.column + at.part * kColumns;
    if (column >= n) return;
    const WantedOutputs<kThreads> wanted(args.rung + (at.batch * m + at.row) * np + at.column, np,
                                         args.flagged.wanted, m - at.row, n - at.column);
    if (wanted.count(shared.count) <= kFewOutputs) return;
    const KRange range = k_range(at.word, args.a_layout.k);
    sum_block<kContiguousA, kContiguousB>(
        args,
        {static_cast<uint32_t>(at.batch), static_cast<uint32_t>(at.row),
         static_cast<uint32_t>(column), static_cast<uint32_t>(range.begin),
         static_cast<uint32_t>(range.end)},
        shared);
  });
}

}  // namespace

Status launch_chain_sum_dense(const LadderSum& sum, const Device& device, cudaStream_t stream) {
  using Kernel = void (*)(ChainSum, int64_t);
  const auto [kernel, shared] = [&]() -> std::pair<Kernel, int> {
    const bool a = sum.a_layout.stride_k == 1, b = sum.b_layout.stride_k == 1;
    if (a && b) return {chain_sum_dense_kernel<true, true>, sizeof(Shared<true, true>)};
    if (a) return {chain_sum_dense_kernel<true, false>, sizeof(Shared<true, false>)};
    if (b) return {chain_sum_dense_kernel<false, true>, sizeof(Shared<false, true>)};
    return {chain_sum_dense_kernel<false, false>, sizeof(Shared<false, false>)};
  }();
  static_assert(sizeof(Shared<true, true>) <= 99 * 1024 - 128);  // what every device has
  const int64_t blocks = sum.flagged.count(sum.a_layout.batch) * kBlocks;
  return launch_resident("chain_sum_dense_kernel", kernel, {blocks, kThreads, shared}, device,
                         stream, ChainSum(sum), blocks);
}

}  // namespace ozaki
