#include <algorithm>

#include "chain_sum.h"
#include "common/chains.h"
#include "common/occupancy.h"
#include "device.h"
#include "flagged_walk.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/cp_async_8.cuh"

namespace ozaki {
namespace {

#ifndef CHAIN_TM
#define CHAIN_TM 8
#endif
#ifndef CHAIN_STAGES
#define CHAIN_STAGES 3
#endif
#ifndef CHAIN_DEPTH
#define CHAIN_DEPTH 16
#endif
#ifndef CHAIN_CTAS
#define CHAIN_CTAS 1
#endif
// A CTA sums a block of outputs, a thread kOwnRows x kOwnColumns of them.
constexpr int kThreads = 256, kWarps = kThreads / 32, kSide = 16;
constexpr int kOwnRows = CHAIN_TM, kOwnColumns = 4;
constexpr int kRows = kSide * kOwnRows, kColumns = kSide * kOwnColumns;
constexpr int kDepth = CHAIN_DEPTH, kStages = CHAIN_STAGES;
static_assert(kSide * kSide == kThreads && kTile % kRows == 0 && kTile % kColumns == 0);
static_assert(kDepth % kChain == 0);

// Few outputs of a block are listed, and summed a warp each: kFewColumns neighbouring columns are
// shared by kFewRows outputs at a time, a lane has a chain.
constexpr int kFew = 256, kListed = 2 * kFew;
#ifndef FEW_STAGES
#define FEW_STAGES 2
#endif
constexpr int kFewStages = FEW_STAGES;
constexpr int kFewColumns = 8, kFewRows = 2 * kWarps, kFewDepth = 32 * kChain;
static_assert(kFewDepth == kThreads && kColumns % kFewColumns == 0);

// A unit of work: kColumns columns and up to so many blocks of rows.
constexpr int kMaxSpan = 4;
static_assert(kMaxSpan * kRows * kColumns <= 1 << 16);

struct Stage {
  double a[kDepth][kRows + 2], b[kDepth][kColumns + 2];
};

struct FewStage {
  double columns[kFewColumns][kFewDepth + 4], rows[kFewRows][kFewDepth];
};

struct Shared {
  union {
    Stage dense[kStages];
    FewStage few[kFewStages];
  };
  uint16_t listed[kListed], chosen[kListed];
  int count, chosen_count;
  unsigned long long occupied[2];
};

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

struct ChainSum : LadderSum {
  int log2_group;  // chains
  int log2_part;   // elements of k that a bit of an occupancy stands for
};

// A block of outputs and what they are made of.
struct Block {
  const double *a, *b;  // its first row and column
  const int64_t *a_stats, *b_stats;
  const uint8_t* rung;  // of its first output
  double* c;
  int rows, columns;
};

// Pieces of k of kPiece elements in which both some row and some column may be nonzero.
template <int kPiece>
struct Pieces {
  uint64_t occupied;
  int log2_part;  // of the elements that a bit stands for
  int64_t k;

  // The first from k = `first` on, a multiple of kPiece; k or more if there is none.
  __device__ __forceinline__ int64_t from(int64_t first) const {
    for (; first < k; first += kPiece) {
      const int low = static_cast<int>(first >> log2_part);
      const int high = min(static_cast<int>((first + kPiece - 1) >> log2_part), 63);
      if ((occupied >> low << low << (63 - high)) != 0) break;
    }
    return first;
  }
};

// Where both some row and some column of those that threads name (each at most one, or null) have
// nonzeros. A barrier.
__device__ __forceinline__ uint64_t occupied_by(const int64_t* row, const int64_t* column,
                                                Shared& shared) {
  __syncthreads();
  if (threadIdx.x < 2) shared.occupied[threadIdx.x] = 0;
  __syncthreads();
  if (row != nullptr) atomicOr(&shared.occupied[0], occupancy_of(row));
  if (column != nullptr) atomicOr(&shared.occupied[1], occupancy_of(column));
  __syncthreads();
  return shared.occupied[0] & shared.occupied[1];
}

// kRowCount rows of an operand, kDepth elements of each, to stage[h][row]; zeros elsewhere.
template <int kRowCount>
__device__ __forceinline__ void load_stage(const double* x, const Layout& layout, int rows,
                                           int64_t first, double (&stage)[kDepth][kRowCount + 2]) {
  const bool contiguous = layout.stride_k == 1;
  const uint32_t target = shared_address(stage);
#pragma unroll
  for (int i = 0; i < kRowCount * kDepth / kThreads; ++i) {
    const int index = i * kThreads + threadIdx.x;
    const int row = contiguous ? index / kDepth : index % kRowCount;
    const int h = contiguous ? index % kDepth : index / kRowCount;
    const bool inside = row < rows && first + h < layout.k;
    ptx::cp_async_8(target + (h * (kRowCount + 2) + row) * sizeof(double),
                    inside ? x + row * layout.stride_r + (first + h) * layout.stride_k : x, inside);
  }
}

// Where a thread's rows, or columns, are in a block: pairs, one in every 2 kSide.
__device__ __forceinline__ int place(int of_thread, int i) {
  return i / 2 * (2 * kSide) + 2 * of_thread + i % 2;
}

template <int kOwn>
__device__ __forceinline__ void load_own(const double* row, int of_thread, double (&own)[kOwn]) {
#pragma unroll
  for (int i = 0; i < kOwn; i += 2) {
    const double2 pair = *reinterpret_cast<const double2*>(row + place(of_thread, i));
    own[i] = pair.x;
    own[i + 1] = pair.y;
  }
}

__device__ __forceinline__ void store(double sum, double* target) {
  const uint64_t bits = __double_as_longlong(sum);
  *target = is_taken(bits) ? sum : __longlong_as_double(kLeftToWindow);
}

// All outputs of a block; those wanted are stored.
__device__ __forceinline__ void sum_block(const ChainSum& args, const Block& block, int64_t np,
                                          Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int own_row = warp / 2 * 4 + lane / 8, own_column = warp % 2 * 8 + lane % 8;
  const int64_t k = args.a_layout.k, n = args.b_layout.rows;
  static_assert(kRows <= kThreads && kColumns <= kThreads);
  const int self = threadIdx.x;
  const uint64_t occupied =
      occupied_by(self < block.rows ? block.a_stats + self * kStatsFields : nullptr,
                  self < block.columns ? block.b_stats + self * kStatsFields : nullptr, shared);
  const Pieces<kDepth> pieces = {occupied, args.log2_part, k};

  double sum[kOwnRows][kOwnColumns] = {}, of_group[kOwnRows][kOwnColumns] = {};
  const auto end_group = [&] {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        sum[i][j] = __dadd_rn(sum[i][j], of_group[i][j]);
        of_group[i][j] = 0;
      }
    }
  };

  int64_t requested = pieces.from(0), first = requested;
  const auto request = [&](int stage) {
    if (requested < k) {
      load_stage<kRows>(block.a, args.a_layout, block.rows, requested, shared.dense[stage].a);
      load_stage<kColumns>(block.b, args.b_layout, block.columns, requested, shared.dense[stage].b);
      requested = pieces.from(requested + kDepth);
    }
    ptx::cp_async_commit();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) request(s);
  int64_t group = 0;
  for (int stage = 0; first < k; first = pieces.from(first + kDepth)) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
    request(stage == 0 ? kStages - 1 : stage - 1);
    const Stage& now = shared.dense[stage];
#pragma unroll
    for (int chain = 0; chain < kDepth; chain += kChain) {
      const int64_t of = (first + chain) / kChain >> args.log2_group;
      if (of != group) {
        end_group();
        group = of;
      }
      double acc[kOwnRows][kOwnColumns];
#pragma unroll
      for (int e = 0; e < kChain; ++e) {
        double a[kOwnRows], b[kOwnColumns];
        load_own(now.a[chain + e], own_row, a);
        load_own(now.b[chain + e], own_column, b);
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
          for (int j = 0; j < kOwnColumns; ++j) {
            acc[i][j] = e == 0 ? __dmul_rn(a[i], b[j]) : __fma_rn(a[i], b[j], acc[i][j]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
          of_group[i][j] = __dadd_rn(of_group[i][j], acc[i][j]);
        }
      }
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  end_group();
  ptx::cp_async_wait<0>();

#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int row = place(own_row, i);
    if (row >= block.rows) continue;
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const int column = place(own_column, j);
      if (column < block.columns &&
          (args.flagged.wanted >> (block.rung[row * np + column] & 31) & 1) != 0) {
        store(sum[i][j], block.c + row * n + column);
      }
    }
  }
}

// Where element h of a row of kFewDepth is: a lane's chain is four pairs, and eight lanes read
// pairs from all banks.
__device__ __forceinline__ int pair_of(int chain, int pair) {
  return chain * (kChain / 2) + (pair ^ (chain >> 1 & 3));
}
__device__ __forceinline__ int place_of(int h) {
  return 2 * pair_of(h / kChain, h % kChain / 2) + h % 2;
}

// Up to kFewRows chosen outputs of kFewColumns columns, two a warp. `unit` is their rows, columns.
__device__ __forceinline__ void sum_few(const ChainSum& args, const Block& unit, int first_chosen,
                                        int count, int first_column, Shared& shared) {
  const int64_t k = args.a_layout.k, n = args.b_layout.rows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint16_t* chosen = shared.chosen + first_chosen;
  const int self = threadIdx.x;
  const bool has_row = self < count;
  const bool has_column = self < kFewColumns && first_column + self < unit.columns;
  const uint64_t occupied = occupied_by(
      has_row ? unit.a_stats + chosen[self] / kColumns * kStatsFields : nullptr,
      has_column ? unit.b_stats + (first_column + self) * kStatsFields : nullptr, shared);
  const Pieces<kFewDepth> pieces = {occupied, args.log2_part, k};

  const auto request = [&](FewStage& stage, int64_t first) {
    if (first < k) {
      const bool contiguous = args.b_layout.stride_k == 1;
#pragma unroll
      for (int i = 0; i < kFewColumns; ++i) {
        const int column = contiguous ? i : threadIdx.x % kFewColumns;
        const int h = contiguous ? threadIdx.x
                                 : threadIdx.x / kFewColumns + i * (kFewDepth / kFewColumns);
        const bool inside = first_column + column < unit.columns && first + h < k;
        const int64_t at = (first_column + column) * args.b_layout.stride_r +
                           (first + h) * args.b_layout.stride_k;
        ptx::cp_async_8(shared_address(&stage.columns[column][place_of(h)]),
                        inside ? unit.b + at : unit.b, inside);
      }
      const bool inside = first + threadIdx.x < k;
      const int64_t along = (first + threadIdx.x) * args.a_layout.stride_k;
      for (int i = 0; i < count; ++i) {
        const int64_t at = chosen[i] / kColumns * args.a_layout.stride_r + along;
        ptx::cp_async_8(shared_address(&stage.rows[i][place_of(threadIdx.x)]),
                        inside ? unit.a + at : unit.a, inside);
      }
    }
    ptx::cp_async_commit();
  };

  double sum = 0, of_group = 0;  // of output `warp + kWarps lane`
  int64_t group = 0;
  int64_t first = pieces.from(0), requested = first;
#pragma unroll
  for (int s = 0; s < kFewStages - 1; ++s) {
    request(shared.few[s], requested);
    requested = pieces.from(requested + kFewDepth);
  }
  for (int stage = 0; first < k; first = pieces.from(first + kFewDepth)) {
    ptx::cp_async_wait<kFewStages - 2>();
    __syncthreads();
    request(shared.few[stage == 0 ? kFewStages - 1 : stage - 1], requested);
    requested = pieces.from(requested + kFewDepth);
    FewStage& now = shared.few[stage];
#pragma unroll
    for (int own = 0; own < kFewRows / kWarps; ++own) {
      const int i = warp + own * kWarps;
      if (i >= count) continue;
      double* const row = now.rows[i];
      const double* const column = now.columns[chosen[i] % kFewColumns];
      double acc = 0;
#pragma unroll
      for (int pair = 0; pair < kChain / 2; ++pair) {
        const double2 x = reinterpret_cast<const double2*>(row)[pair_of(lane, pair)];
        const double2 y = reinterpret_cast<const double2*>(column)[pair_of(lane, pair)];
        acc = __fma_rn(x.x, y.x, acc);
        acc = __fma_rn(x.y, y.y, acc);
      }
      __syncwarp();
      row[lane] = acc;
    }
    __syncwarp();
    if (warp + lane * kWarps < count) {
      const double* const sums = now.rows[warp + lane * kWarps];
#pragma unroll 8
      for (int chain = 0; chain < 32; ++chain) {
        const int64_t of = first / kChain + chain >> args.log2_group;
        if (of != group) {
          sum = __dadd_rn(sum, of_group);
          of_group = 0;
          group = of;
        }
        of_group = __dadd_rn(of_group, sums[chain]);
      }
    }
    stage = stage == kFewStages - 1 ? 0 : stage + 1;
  }
  ptx::cp_async_wait<0>();
  const int own = warp + lane * kWarps;
  if (own < count) {
    sum = __dadd_rn(sum, of_group);
    store(sum, unit.c + chosen[own] / kColumns * n + chosen[own] % kColumns);
  }
}

// The outputs listed, column by column.
__device__ __noinline__ void sum_listed(const ChainSum& args, const Block& unit,
                                           Shared& shared) {
  for (int column = 0; column < kColumns; column += kFewColumns) {
    __syncthreads();
    if (threadIdx.x == 0) shared.chosen_count = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < shared.count; i += kThreads) {
      const uint16_t output = shared.listed[i];
      if (output % kColumns / kFewColumns * kFewColumns == column) {
        shared.chosen[atomicAdd(&shared.chosen_count, 1)] = output;
      }
    }
    __syncthreads();
    for (int first = 0; first < shared.chosen_count; first += kFewRows) {
      sum_few(args, unit, first, min(kFewRows, shared.chosen_count - first), column,
              shared);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
}

// A block of a unit: summed as a whole, or what is wanted of it is listed. `row` is its first one.
__device__ __forceinline__ void sum_or_list(const ChainSum& args, const Block& block, int row,
                                            int64_t np, Shared& shared) {
  constexpr int kVectors = kColumns / 16, kOwn = kRows * kVectors / kThreads;
  uint32_t wanted = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int index = i * kThreads + threadIdx.x;
    const int of_row = index / kVectors, vector = index % kVectors * 16;
    if (of_row >= block.rows || vector >= block.columns) continue;
    const uint4 rungs = *reinterpret_cast<const uint4*>(block.rung + of_row * np + vector);
    const uint32_t words[] = {rungs.x, rungs.y, rungs.z, rungs.w};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      wanted |= (args.flagged.wanted >> (words[j / 4] >> (j % 4 * 8) & 31) & 1) << (i * 16 + j);
    }
  }
  // Counts beyond what is listed already.
  __syncthreads();
  if (threadIdx.x == 0) shared.chosen_count = 0;
  __syncthreads();
  if (wanted != 0) atomicAdd(&shared.chosen_count, __popc(wanted));
  __syncthreads();
  if (shared.chosen_count > kFew) {
    sum_block(args, block, np, shared);
    return;
  }
  if (wanted != 0) {
    int at = atomicAdd(&shared.count, __popc(wanted));
    for (uint32_t rest = wanted; rest != 0; rest &= rest - 1) {
      const int bit = __ffs(rest) - 1, index = bit / 16 * kThreads + threadIdx.x;
      shared.listed[at++] = static_cast<uint16_t>((row + index / kVectors) * kColumns +
                                                  index % kVectors * 16 + bit % 16);
    }
  }
}

__global__ void __launch_bounds__(kThreads, CHAIN_CTAS)
    chain_sum_kernel(const __grid_constant__ ChainSum args, int span) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows, np = padded(n);
  const int64_t strips = (n + kColumns - 1) / kColumns;
  const int64_t row_blocks = (m + kRows - 1) / kRows, spans = (row_blocks + span - 1) / span;
  if (threadIdx.x == 0) shared.count = 0;

  struct Place {
    int64_t batch, column, first, last;  // blocks of rows
  };
  const auto place_of_unit = [&](int64_t unit) {
    const int64_t strip = unit / spans, batch = strip / strips;
    const int64_t first = (unit - strip * spans) * span;
    return Place{batch, (strip - batch * strips) * kColumns, first,
                 min(first + span, row_blocks)};
  };
  const auto flagged = [&](const Place& at, int64_t block) {
    return args.flagged.at(at.batch, block * kRows / kTile, at.column / kTile);
  };
  for_flagged<kThreads>(
      args.a_layout.batch * strips * spans,
      [&](int64_t unit) {
        const Place at = place_of_unit(unit);
        bool found = false;
        for (int64_t block = at.first; block < at.last; ++block) found |= flagged(at, block);
        return found;
      },
      [&](int64_t unit) {
        const Place at = place_of_unit(unit);
        const auto rows_from = [&](int64_t row, int64_t rows) {
          return Block{args.a + args.a_layout.offset(at.batch, row, 0),
                       args.b + args.b_layout.offset(at.batch, at.column, 0),
                       args.a_stats + (at.batch * m + row) * kStatsFields,
                       args.b_stats + (at.batch * n + at.column) * kStatsFields,
                       args.rung + (at.batch * m + row) * np + at.column,
                       args.c + (at.batch * m + row) * n + at.column,
                       static_cast<int>(min(rows, m - row)),
                       static_cast<int>(min(int64_t{kColumns}, n - at.column))};
        };
        const Block whole = rows_from(at.first * kRows, span * kRows);
        for (int64_t block = at.first; block < at.last; ++block) {
          if (!flagged(at, block)) continue;
          sum_or_list(args, rows_from(block * kRows, kRows),
                      static_cast<int>(block - at.first) * kRows, np, shared);
          __syncthreads();
          if (shared.count > kListed - kFew) sum_listed(args, whole, shared);
        }
        if (shared.count > 0) sum_listed(args, whole, shared);
      });
}

}  // namespace

Status launch_chain_sum(const LadderSum& sum, cudaStream_t stream) {
  constexpr int kShared = sizeof(Shared);
  static_assert(kFewStages > 2 || kShared <= 99 * 1024 - 128);  // what every device has
  OZAKI_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      chain_sum_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  int64_t ctas = 0;
  OZAKI_RETURN_IF_ERROR(resident_ctas(chain_sum_kernel, kThreads, kShared, &ctas));
  const auto log2 = [](int64_t x) { return ctz64(static_cast<uint64_t>(x)); };
  const auto blocks = [](int64_t extent, int64_t unit) { return (extent + unit - 1) / unit; };
  const int64_t strips = sum.a_layout.batch * blocks(sum.b_layout.rows, kColumns);
  const int64_t row_blocks = blocks(sum.a_layout.rows, kRows);
  // As many blocks a unit as leave every CTA several units.
  const int span =
      static_cast<int>(std::clamp<int64_t>(strips * row_blocks / (4 * ctas), 1, kMaxSpan));
  const int64_t units = strips * blocks(row_blocks, span);
  chain_sum_kernel<<<static_cast<unsigned>(std::min(ctas, units)), kThreads, kShared, stream>>>(
      {sum, log2(sum.group), log2(part_length(sum.a_layout.k))}, span);
  return launch_status("chain_sum_kernel");
}

}  // namespace ozaki
