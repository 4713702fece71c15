#include <algorithm>

#include "chain_sum.h"
#include "common/chains.h"
#include "common/occupancy.h"
#include "device.h"
#include "flagged_walk.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/cp_async_8.cuh"
#include "ptx/mma_f64.cuh"

namespace ozaki {
namespace {

// A CTA sums a block of outputs, a warp a part of it in tiles of 8 x 8.
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTiles = 4, kWarpsAlongRows = 4, kWarpsAlongColumns = 2, kSide = 8 * kTiles;
constexpr int kRows = kWarpsAlongRows * kSide, kColumns = kWarpsAlongColumns * kSide;
constexpr int kDepth = 16, kStages = 3;
static_assert(kWarpsAlongRows * kWarpsAlongColumns == kWarps);
static_assert(kTile % kRows == 0 && kTile % kColumns == 0 && kDepth % kChain == 0);

// Few outputs of a block are listed, and summed four lanes each, a chain a lane.
constexpr int kFew = 96, kListed = 512;
constexpr int kFewLanes = 4, kFewDepth = kFewLanes * kChain, kFewRows = kThreads / kFewLanes;
constexpr int kFewStages = 3;
static_assert(kColumns == 64, "the columns needed are bits of a word");

// A unit of work: kColumns columns and up to so many blocks of rows.
constexpr int kMaxSpan = 4;
static_assert(kMaxSpan * kRows * kColumns <= 1 << 16);

// kRowCount rows of an operand, or columns, as they lie in memory: along k, or along the rows. Lanes
// that read four k of four rows use all banks.
template <int kRowCount>
struct Stage {
  static constexpr int kPad = 4;
  double at[std::max(kRowCount * (kDepth + kPad), kDepth*(kRowCount + kPad))];

  template <bool kContiguous>
  __device__ __forceinline__ static constexpr int place(int row, int h) {
    return kContiguous ? row * (kDepth + kPad) + h : h * (kRowCount + kPad) + row;
  }
};

struct DenseStage {
  Stage<kRows> a;
  Stage<kColumns> b;
};

// Rows of kFewDepth elements each. Columns that do not lie along k: the other way round.
struct FewStage {
  double columns[kColumns * kFewDepth], rows[kFewRows * kFewDepth];
};

struct Shared {
  union {
    DenseStage dense[kStages];
    FewStage few[kFewStages];
  };
  uint16_t listed[kListed];
  int listed_count, block_count;
  unsigned long long occupied[2], needed;
};

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

struct ChainSum : LadderSum {
  int log2_group;           // chains
  int log2_part;            // elements of k that a bit of an occupancy stands for
  bool a_paired, b_paired;  // every other element is on a 16-byte boundary
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

// Copies one or two neighbouring elements, of which `left` are there, zeros for others.
template <bool kPaired>
__device__ __forceinline__ void copy(double* target, const double* x, int64_t at, int64_t left) {
  const double* const source = left > 0 ? x + at : x;
  if (kPaired) {
    ptx::cp_async_16_part(shared_address(target), source, left >= 2 ? 16 : left > 0 ? 8 : 0);
  } else {
    ptx::cp_async_8(shared_address(target), source, left > 0);
  }
}

template <bool kContiguous, bool kPaired, int kRowCount>
__device__ __forceinline__ void load_stage(const double* x, const Layout& layout, int rows,
                                           int64_t first, Stage<kRowCount>& stage) {
  constexpr int kRun = kPaired ? 2 : 1, kAlong = (kContiguous ? kDepth : kRowCount) / kRun;
#pragma unroll
  for (int i = 0; i < kRowCount * kDepth / kRun / kThreads; ++i) {
    const int index = i * kThreads + threadIdx.x;
    const int along = index % kAlong * kRun, across = index / kAlong;
    const int row = kContiguous ? across : along, h = kContiguous ? along : across;
    const int64_t rows_left = rows - row, k_left = layout.k - first - h;
    const int64_t left = kContiguous ? (rows_left > 0 ? k_left : 0) : (k_left > 0 ? rows_left : 0);
    copy<kPaired>(stage.at + Stage<kRowCount>::template place<kContiguous>(row, h), x,
                  row * layout.stride_r + (first + h) * layout.stride_k, left);
  }
}

// kDepth elements of the rows of an operand; zeros beyond its rows and k.
template <bool kContiguous, int kRowCount>
__device__ __forceinline__ void load_stage(const double* x, const Layout& layout, bool paired,
                                           int rows, int64_t first, Stage<kRowCount>& stage) {
  if (paired) {
    load_stage<kContiguous, true>(x, layout, rows, first, stage);
  } else {
    load_stage<kContiguous, false>(x, layout, rows, first, stage);
  }
}

__device__ __forceinline__ void store(double sum, double* target) {
  const uint64_t bits = __double_as_longlong(sum);
  *target = is_taken(bits) ? sum : __longlong_as_double(kLeftToWindow);
}

using Accumulators = double[kTiles][kTiles][2];

__device__ __forceinline__ void add(Accumulators& sum, const Accumulators& other) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      sum[i][j][0] = __dadd_rn(sum[i][j][0], other[i][j][0]);
      sum[i][j][1] = __dadd_rn(sum[i][j][1], other[i][j][1]);
    }
  }
}

// All outputs of a block; those wanted are stored.
template <bool kContiguousA, bool kContiguousB>
__device__ __forceinline__ void sum_block(const ChainSum& args, const Block& block, int64_t np,
                                          Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int own_row = warp / kWarpsAlongColumns * kSide + lane / 4;
  const int first_column = warp % kWarpsAlongColumns * kSide;
  const int64_t k = args.a_layout.k, n = args.b_layout.rows;
  static_assert(kRows <= kThreads && kColumns <= kThreads);
  const int self = threadIdx.x;
  const uint64_t occupied =
      occupied_by(self < block.rows ? block.a_stats + self * kStatsFields : nullptr,
                  self < block.columns ? block.b_stats + self * kStatsFields : nullptr, shared);
  const Pieces<kDepth> pieces = {occupied, args.log2_part, k};

  int64_t requested = pieces.from(0), first = requested;
  const auto request = [&](int stage) {
    if (requested < k) {
      DenseStage& next = shared.dense[stage];
      load_stage<kContiguousA>(block.a, args.a_layout, args.a_paired, block.rows, requested,
                               next.a);
      load_stage<kContiguousB>(block.b, args.b_layout, args.b_paired, block.columns, requested,
                               next.b);
      requested = pieces.from(requested + kDepth);
    }
    ptx::cp_async_commit();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) request(s);

  Accumulators sum = {}, of_group = {};
  int64_t group = 0;
  for (int stage = 0; first < k; first = pieces.from(first + kDepth)) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
    request(stage == 0 ? kStages - 1 : stage - 1);
    const double* const of_a = shared.dense[stage].a.at;
    const double* const of_b = shared.dense[stage].b.at;
#pragma unroll
    for (int chain = 0; chain < kDepth; chain += kChain) {
      const int64_t of = (first + chain) / kChain >> args.log2_group;
      if (of != group) {
        add(sum, of_group);
        memset(of_group, 0, sizeof of_group);
        group = of;
      }
      Accumulators acc;
      double a[kTiles / 2][4], b[kTiles][2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = chain + 4 * h + lane % 4;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          a[i / 2][2 * h + i % 2] =
              of_a[Stage<kRows>::template place<kContiguousA>(own_row + 8 * i, at)];
          b[i][h] = of_b[Stage<kColumns>::template place<kContiguousB>(
              first_column + lane / 4 + 8 * i, at)];
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles; i += 2) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          ptx::mma_m16n8k8(acc[i][j], acc[i + 1][j], a[i / 2], b[j]);
        }
      }
      add(of_group, acc);
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  add(sum, of_group);
  ptx::cp_async_wait<0>();

#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int row = own_row + 8 * i;
    if (row >= block.rows) continue;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const int column = first_column + 8 * j + lane % 4 * 2 + l;
        if (column < block.columns &&
            (args.flagged.wanted >> (block.rung[row * np + column] & 31) & 1) != 0) {
          store(sum[i][j][l], block.c + row * n + column);
        }
      }
    }
  }
}

// Where a pair of elements is among those of rows: eight lanes that read a pair of four chains of
// two rows use all banks, and few of 16 lanes that write the same element of 16 rows share one.
__device__ __forceinline__ int place_along_k(int row, int h) {
  const int chain = h / kChain, pair = h % kChain / 2;
  const int turn = (row & 12) | (row & 1) << 1 | (row >> 1 & 1);
  const int unit = (chain * (kChain / 2) + (pair ^ chain >> 1)) ^ turn;
  return row * kFewDepth + 2 * unit + h % 2;
}

// The same of columns that lie the other way round: lanes read an element of four chains.
__device__ __forceinline__ int place_along_columns(int column, int h) {
  const int unit = (column / 2) ^ (h / kChain * 2);
  return h * kColumns + 2 * unit + column % 2;
}

// kFewDepth elements of `count` rows, row_of(i) of the operand each, to the rows of a stage; none
// where that is negative.
template <typename RowOf>
__device__ __forceinline__ void load_rows(const double* x, const Layout& layout, bool paired,
                                          int count, const RowOf& row_of, int64_t first,
                                          double* rows) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (paired && layout.stride_k == 1) {
    for (int i = 2 * warp + lane / 16; i < count; i += 2 * kWarps) {
      const int row = row_of(i), h = lane % 16 * 2;
      if (row < 0) continue;
      copy<true>(rows + place_along_k(i, h), x, row * layout.stride_r + first + h,
                 layout.k - first - h);
    }
  } else {
    for (int i = warp; i < count; i += kWarps) {
      const int row = row_of(i);
      if (row < 0) continue;
      copy<false>(rows + place_along_k(i, lane), x,
                  row * layout.stride_r + (first + lane) * layout.stride_k,
                  layout.k - first - lane);
    }
  }
}

// kFewDepth elements of those of kColumns columns that are needed, for place_along_columns().
template <bool kPaired>
__device__ __forceinline__ void load_columns(const double* x, const Layout& layout, uint64_t needed,
                                             int columns, int64_t first, double* stage) {
  constexpr int kRun = kPaired ? 2 : 1, kAlong = kColumns / kRun;
#pragma unroll
  for (int i = 0; i < kColumns * kFewDepth / kRun / kThreads; ++i) {
    const int index = i * kThreads + threadIdx.x;
    const int column = index % kAlong * kRun, h = index / kAlong;
    if ((needed >> column & (kPaired ? 3 : 1)) == 0) continue;
    copy<kPaired>(stage + place_along_columns(column, h), x,
                  column * layout.stride_r + (first + h) * layout.stride_k,
                  first + h < layout.k ? columns - column : 0);
  }
}

// Up to kFewRows outputs of a unit.
template <bool kContiguousB>
__device__ __forceinline__ void sum_few(const ChainSum& args, const Block& unit,
                                        const uint16_t* outputs, int count, Shared& shared) {
  const int64_t k = args.a_layout.k, n = args.b_layout.rows;
  const int lane = threadIdx.x % 32, self = threadIdx.x;
  const uint64_t occupied = occupied_by(
      self < count ? unit.a_stats + outputs[self] / kColumns * kStatsFields : nullptr,
      self < count ? unit.b_stats + outputs[self] % kColumns * kStatsFields : nullptr, shared);
  if (self == 0) shared.needed = 0;
  __syncthreads();
  if (self < count) atomicOr(&shared.needed, 1ull << outputs[self] % kColumns);
  __syncthreads();
  const uint64_t needed = shared.needed;
  const Pieces<kFewDepth> pieces = {occupied, args.log2_part, k};

  int64_t requested = pieces.from(0), first = requested;
  const auto request = [&](FewStage& stage) {
    if (requested < k) {
      if (kContiguousB) {
        const auto column_of = [&](int i) { return (needed >> i & 1) != 0 ? i : -1; };
        load_rows(unit.b, args.b_layout, args.b_paired, kColumns, column_of, requested,
                  stage.columns);
      } else if (args.b_paired) {
        load_columns<true>(unit.b, args.b_layout, needed, unit.columns, requested, stage.columns);
      } else {
        load_columns<false>(unit.b, args.b_layout, needed, unit.columns, requested, stage.columns);
      }
      const auto row_of = [&](int i) { return outputs[i] / kColumns; };
      load_rows(unit.a, args.a_layout, args.a_paired, count, row_of, requested, stage.rows);
      requested = pieces.from(requested + kFewDepth);
    }
    ptx::cp_async_commit();
  };
#pragma unroll
  for (int s = 0; s < kFewStages - 1; ++s) request(shared.few[s]);

  // Four lanes have an output's sum.
  const int row = self / kFewLanes, own_chain = self % kFewLanes;
  const int output = outputs[min(row, count - 1)], column = output % kColumns;
  double sum = 0, of_group = 0;
  int64_t group = 0;
  for (int stage = 0; first < k; first = pieces.from(first + kFewDepth)) {
    ptx::cp_async_wait<kFewStages - 2>();
    __syncthreads();
    request(shared.few[stage == 0 ? kFewStages - 1 : stage - 1]);
    const FewStage& now = shared.few[stage];
    double acc = 0;
#pragma unroll
    for (int e = 0; e < kChain; e += 2) {
      const int h = own_chain * kChain + e;
      const double2 x = *reinterpret_cast<const double2*>(now.rows + place_along_k(row, h));
      double2 y;
      if (kContiguousB) {
        y = *reinterpret_cast<const double2*>(now.columns + place_along_k(column, h));
      } else {
        y.x = now.columns[place_along_columns(column, h)];
        y.y = now.columns[place_along_columns(column, h + 1)];
      }
      acc = __fma_rn(x.x, y.x, acc);
      acc = __fma_rn(x.y, y.y, acc);
    }
#pragma unroll
    for (int chain = 0; chain < kFewLanes; ++chain) {
      const int64_t of = (first / kChain + chain) >> args.log2_group;
      if (of != group) {
        sum = __dadd_rn(sum, of_group);
        of_group = 0;
        group = of;
      }
      of_group = __dadd_rn(of_group, __shfl_sync(~0u, acc, lane / kFewLanes * kFewLanes + chain));
    }
    stage = stage == kFewStages - 1 ? 0 : stage + 1;
  }
  ptx::cp_async_wait<0>();
  if (row < count && own_chain == 0) {
    store(__dadd_rn(sum, of_group), unit.c + output / kColumns * n + column);
  }
}

// The outputs listed.
template <bool kContiguousB>
__device__ __noinline__ void sum_listed(const ChainSum& args, const Block& unit, Shared& shared) {
  for (int first = 0; first < shared.listed_count; first += kFewRows) {
    sum_few<kContiguousB>(args, unit, shared.listed + first,
                          min(kFewRows, shared.listed_count - first), shared);
  }
  __syncthreads();
  if (threadIdx.x == 0) shared.listed_count = 0;
  __syncthreads();
}

// A block of a unit: summed as a whole, or what is wanted of it is listed. `row` is its first one.
template <bool kContiguousA, bool kContiguousB>
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
  if (threadIdx.x == 0) shared.block_count = 0;
  __syncthreads();
  if (wanted != 0) atomicAdd(&shared.block_count, __popc(wanted));
  __syncthreads();
  if (shared.block_count > kFew) {
    sum_block<kContiguousA, kContiguousB>(args, block, np, shared);
    return;
  }
  if (wanted != 0) {
    int at = atomicAdd(&shared.listed_count, __popc(wanted));
    for (uint32_t rest = wanted; rest != 0; rest &= rest - 1) {
      const int bit = __ffs(rest) - 1, index = bit / 16 * kThreads + threadIdx.x;
      shared.listed[at++] = static_cast<uint16_t>((row + index / kVectors) * kColumns +
                                                  index % kVectors * 16 + bit % 16);
    }
  }
}

template <bool kContiguousA, bool kContiguousB>
__global__ void __launch_bounds__(kThreads, 1)
    chain_sum_kernel(const __grid_constant__ ChainSum args, int span) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows, np = padded(n);
  const int64_t strips = (n + kColumns - 1) / kColumns;
  const int64_t row_blocks = (m + kRows - 1) / kRows, spans = (row_blocks + span - 1) / span;
  if (threadIdx.x == 0) shared.listed_count = 0;

  struct Place {
    int64_t batch, column, first, last;  // blocks of rows
  };
  const auto place_of_unit = [&](int64_t unit) {
    const int64_t strip = unit / spans, batch = strip / strips;
    const int64_t first = (unit - strip * spans) * span;
    return Place{batch, (strip - batch * strips) * kColumns, first, min(first + span, row_blocks)};
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
          sum_or_list<kContiguousA, kContiguousB>(args, rows_from(block * kRows, kRows),
                                                  static_cast<int>(block - at.first) * kRows, np,
                                                  shared);
          __syncthreads();
          if (shared.listed_count > kListed - kFew) sum_listed<kContiguousB>(args, whole, shared);
        }
        if (shared.listed_count > 0) sum_listed<kContiguousB>(args, whole, shared);
      });
}

// Whether every other element of a run in memory, from its first on, is on a 16-byte boundary.
bool paired(const double* x, const Layout& layout) {
  const int64_t across = layout.stride_k == 1 ? layout.stride_r : layout.stride_k;
  const bool runs = layout.stride_k == 1 || layout.stride_r == 1;
  return runs && reinterpret_cast<uintptr_t>(x) % 16 == 0 && layout.stride_b % 2 == 0 &&
         across % 2 == 0;
}

}  // namespace

Status launch_chain_sum(const LadderSum& sum, cudaStream_t stream) {
  constexpr int kShared = sizeof(Shared);
  static_assert(kShared <= 99 * 1024 - 128);  // what every device has
  const auto contiguous = [](const Layout& layout) { return layout.stride_k == 1; };
  const auto kernel =
      contiguous(sum.a_layout)
          ? contiguous(sum.b_layout) ? chain_sum_kernel<true, true> : chain_sum_kernel<true, false>
      : contiguous(sum.b_layout) ? chain_sum_kernel<false, true>
                                 : chain_sum_kernel<false, false>;
  OZAKI_RETURN_IF_CUDA_ERROR(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  int64_t ctas = 0;
  OZAKI_RETURN_IF_ERROR(resident_ctas(kernel, kThreads, kShared, &ctas));
  const auto log2 = [](int64_t x) { return ctz64(static_cast<uint64_t>(x)); };
  const auto blocks = [](int64_t extent, int64_t unit) { return (extent + unit - 1) / unit; };
  const int64_t strips = sum.a_layout.batch * blocks(sum.b_layout.rows, kColumns);
  const int64_t row_blocks = blocks(sum.a_layout.rows, kRows);
  // As many blocks a unit as leave every CTA several units.
  const int span =
      static_cast<int>(std::clamp<int64_t>(strips * row_blocks / (4 * ctas), 1, kMaxSpan));
  const int64_t units = strips * blocks(row_blocks, span);
  kernel<<<static_cast<unsigned>(std::min(ctas, units)), kThreads, kShared, stream>>>(
      {sum, log2(sum.group), log2(part_length(sum.a_layout.k)), paired(sum.a, sum.a_layout),
       paired(sum.b, sum.b_layout)},
      span);
  return launch_status("chain_sum_kernel");
}

}  // namespace ozaki
