#include <algorithm>
#include <type_traits>
#include <utility>

#include "chain_sum.cuh"
#include "common/occupancy.h"
#include "flagged_walk.cuh"
#include "launch.h"
#include "ptx/dependent_launch.cuh"

namespace ozaki {
namespace {

// Outputs of a few columns and many rows share what is copied to shared memory: of an operand that
// lies along k the rows of the outputs alone, of one that does not all columns, whose elements are
// neighbours. A thread sums an output.
constexpr int kThreads = 128;
constexpr int kDepth = 16, kPairs = kDepth / 2;
static_assert(kDepth % kChain == 0);

// A unit of work: kColumns columns and up to so many tiles of rows.
constexpr int kColumns = 64, kMaxSpan = 4, kListed = kMaxSpan * kFewOutputs;
static_assert(kTile % kColumns == 0 && kMaxSpan * kTile * kColumns <= 1 << 16);

struct FewSum : ChainSum {
  // Rows and columns in each other's place.
  bool transposed;
  int log2_part;  // elements of k that a bit of an occupancy stands for
  int span;       // tiles of rows of a unit
  int64_t units;

  // Of the product as it is stored.
  __device__ __forceinline__ int64_t m() const {
    return transposed ? b_layout.rows : a_layout.rows;
  }
  __device__ __forceinline__ int64_t n() const {
    return transposed ? a_layout.rows : b_layout.rows;
  }
};

// Rows of outputs, along k, one a thread. Threads that read pairs use all banks.
struct OwnRows {
  static constexpr int kPitch = kDepth + 2;
  double at[kThreads * kPitch];
};

// All columns of a unit, as they lie in memory.
struct Strip {
  using Copies = BlockCopies<false, kColumns, kDepth, kColumns, kThreads>;
  double at[kDepth * kColumns];
};

template <bool kContiguousB>
struct Shared {
  static constexpr int kStages = kContiguousB ? 2 : 3;  // as many as every device has room for
  struct {
    OwnRows rows;
    std::conditional_t<kContiguousB, OwnRows, Strip> columns;
  } stage[kStages];
  uint16_t listed[kListed];
  int listed_count, tile_count;
  unsigned long long occupied;
};

// The copies of a thread to stages of rows: a pair of k of every kRowsAtOnce-th one.
class RowCopies {
 public:
  // row_of(i) is that of output i < count.
  template <typename RowOf>
  __device__ __forceinline__ RowCopies(const double* x, const Layout& layout, int count,
                                       const RowOf& row_of)
      : step_(layout.stride_k), k_(static_cast<int>(layout.k)), count_(count) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      source_[i] = x + row_of(min(index(i), count - 1)) * layout.stride_r + h() * step_;
    }
  }

  // kDepth elements from `first` on.
  template <bool kPaired>
  __device__ __forceinline__ void request(uint32_t first, double* stage) const {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (index(i) >= count_) break;
      copy_pair<kPaired>(stage + index(i) * OwnRows::kPitch + h(), source_[i] + first * step_,
                         step_, k_ - static_cast<int>(first) - h());
    }
  }

 private:
  static constexpr int kRowsAtOnce = kThreads / kPairs, kCopies = kThreads / kRowsAtOnce;

  __device__ __forceinline__ static int h() { return threadIdx.x % kPairs * 2; }
  __device__ __forceinline__ static int index(int i) {
    return i * kRowsAtOnce + threadIdx.x / kPairs;
  }

  const double* source_[kCopies];
  int64_t step_;
  int k_, count_;
};

// Pieces of k of kDepth elements in which some output has a product of nonzeros.
struct Pieces {
  uint64_t occupied;
  int log2_part;  // of the elements that a bit stands for
  uint32_t k;

  // The first from k = `first` on, a multiple of kDepth; k or more if there is none.
  __device__ __forceinline__ uint32_t from(uint32_t first) const {
    for (; first < k; first += kDepth) {
      const int low = static_cast<int>(first >> log2_part);
      const int high = min(static_cast<int>((first + kDepth - 1) >> log2_part), 63);
      if ((occupied >> low << low << (63 - high)) != 0) break;
    }
    return first;
  }
};

// Of a unit: its first row and column.
struct Unit {
  const double *a, *b;
  const int64_t *a_stats, *b_stats;
  int64_t batch, row, column;
};

// Up to kThreads outputs of a unit.
template <bool kContiguousB>
__device__ __forceinline__ void sum_outputs(const FewSum& args, const Unit& unit,
                                            const uint16_t* outputs, int count,
                                            Shared<kContiguousB>& shared) {
  constexpr int kStages = Shared<kContiguousB>::kStages;
  const uint32_t k = static_cast<uint32_t>(args.a_layout.k);
  const int self = threadIdx.x;
  const auto row_of = [&](int i) { return outputs[i] / kColumns; };
  const auto column_of = [&](int i) { return outputs[i] % kColumns; };
  const int row = row_of(min(self, count - 1)), column = column_of(min(self, count - 1));
  const unsigned long long occupied = occupancy_of(unit.a_stats + row * kStatsFields) &
                                      occupancy_of(unit.b_stats + column * kStatsFields);
  const auto join = [](unsigned long long* to, unsigned long long x) { atomicOr(to, x); };
  const Pieces pieces = {join_threads(occupied, shared.occupied, join), args.log2_part, k};

  const RowCopies rows(unit.a, args.a_layout, count, row_of);
  const auto columns = [&] {
    if constexpr (kContiguousB) {
      return RowCopies(unit.b, args.b_layout, count, column_of);
    } else {
      return Strip::Copies(
          unit.b, args.b_layout,
          static_cast<int>(min(int64_t{kColumns}, args.b_layout.rows - unit.column)));
    }
  }();
  uint32_t requested = pieces.from(0), first = requested;
  const auto next = [&](int stage) {
    if (requested < k) {
      // Strided rows, of which others are not in the unit, are read an element at a time.
      request(rows, args.a_paired && args.a_layout.stride_k == 1, requested,
              shared.stage[stage].rows.at);
      request(columns, args.b_paired, requested, shared.stage[stage].columns.at);
      requested = pieces.from(requested + kDepth);
    }
    ptx::cp_async_commit();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) next(s);

  double sum = 0, of_group = 0;
  uint32_t group = 0;
  for (int stage = 0; first < k; first = pieces.from(first + kDepth)) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
    next(stage == 0 ? kStages - 1 : stage - 1);
    const double* const x = shared.stage[stage].rows.at + self * OwnRows::kPitch;
    const double* const y = shared.stage[stage].columns.at;
    if (self < count) {
#pragma unroll
      for (int chain = 0; chain < kDepth; chain += kChain) {
        double acc = 0;
#pragma unroll
        for (int e = chain; e < chain + kChain; e += 2) {
          const double2 of_row = *reinterpret_cast<const double2*>(x + e);
          double2 of_column;
          if constexpr (kContiguousB) {
            of_column = *reinterpret_cast<const double2*>(y + self * OwnRows::kPitch + e);
          } else {
            of_column = {y[e * kColumns + column], y[(e + 1) * kColumns + column]};
          }
          acc = __fma_rn(of_row.x, of_column.x, acc);
          acc = __fma_rn(of_row.y, of_column.y, acc);
        }
        const uint32_t of = (first + chain) / kChain >> args.log2_group;
        if (of != group) {
          sum = __dadd_rn(sum, of_group);
          of_group = 0;
          group = of;
        }
        of_group = __dadd_rn(of_group, acc);
      }
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  ptx::cp_async_wait<0>();
  if (self < count) {
    const int64_t i = unit.row + row, j = unit.column + column;
    const int64_t at = args.transposed ? (unit.batch * args.m() + j) * args.n() + i
                                       : (unit.batch * args.m() + i) * args.n() + j;
    store(__dadd_rn(sum, of_group), args.c + at);
  }
}

template <bool kContiguousB>
__global__ void __launch_bounds__(kThreads, 3)
    chain_sum_few_kernel(const __grid_constant__ FewSum args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kContiguousB>*>(memory);
  // What the kernel before this one reads and writes is done or of other outputs: it was launched
  // when all before it had ended. What comes next waits for both.
  ptx::launch_dependents();
  const int64_t row_tiles = tiles_of(args.a_layout.rows);
  const int64_t strips = (args.b_layout.rows + kColumns - 1) / kColumns;
  const int64_t spans = (row_tiles + args.span - 1) / args.span;

  struct Place {
    int64_t batch, column, first, last;  // tiles of rows
  };
  const auto place_of = [&](int64_t unit) {
    const int64_t strip = unit / spans, batch = strip / strips;
    const int64_t first = (unit - strip * spans) * args.span;
    return Place{batch, (strip - batch * strips) * kColumns, first,
                 min(first + args.span, row_tiles)};
  };
  const auto flagged = [&](const Place& at, int64_t tile) {
    const int64_t of_column = at.column / kTile;
    return args.transposed ? args.flagged.at(at.batch, of_column, tile)
                           : args.flagged.at(at.batch, tile, of_column);
  };
  for_flagged<kThreads>(
      args.units,
      [&](int64_t unit) {
        const Place at = place_of(unit);
        bool found = false;
        for (int64_t tile = at.first; tile < at.last; ++tile) found |= flagged(at, tile) != 0;
        return found;
      },
      [&](int64_t index) {
        const Place at = place_of(index);
        const int64_t m = args.m(), n = args.n(), np = padded(n), first = at.first * kTile;
        if (threadIdx.x == 0) shared.listed_count = 0;
        for (int64_t tile = at.first; tile < at.last; ++tile) {
          if (flagged(at, tile) == 0) continue;
          const int64_t row = tile * kTile, column = at.column / kTile * kTile;
          const int64_t i = args.transposed ? column : row, j = args.transposed ? row : column;
          const WantedOutputs<kThreads> wanted(args.rung + (at.batch * m + i) * np + j, np,
                                               args.flagged.wanted, m - i, n - j);
          if (wanted.count(shared.tile_count) > kFewOutputs) continue;
          wanted.for_own([&](int of_i, int of_j) {
            const int of_row = args.transposed ? of_j : of_i;
            const int of_unit =
                (args.transposed ? of_i : of_j) - static_cast<int>(at.column - column);
            if (of_unit < 0 || of_unit >= kColumns) return;
            shared.listed[atomicAdd(&shared.listed_count, 1)] = static_cast<uint16_t>(
                (static_cast<int>(row - first) + of_row) * kColumns + of_unit);
          });
        }
        __syncthreads();
        const Unit unit = {
            args.a + args.a_layout.offset(at.batch, first, 0),
            args.b + args.b_layout.offset(at.batch, at.column, 0),
            args.a_stats + (at.batch * args.a_layout.rows + first) * kStatsFields,
            args.b_stats + (at.batch * args.b_layout.rows + at.column) * kStatsFields,
            at.batch,
            first,
            at.column};
        const int count = shared.listed_count;
        for (int done = 0; done < count; done += kThreads) {
          sum_outputs<kContiguousB>(args, unit, shared.listed + done, min(kThreads, count - done),
                                    shared);
        }
        __syncthreads();
      });
  ptx::wait_for_previous();
}

}  // namespace

Status launch_chain_sum_few(const LadderSum& of, const Device& device, cudaStream_t stream) {
  LadderSum sum = of;
  // A strided operand is read in strips: of two operands the rhs.
  const bool transposed = sum.a_layout.stride_k != 1 && sum.b_layout.stride_k == 1;
  if (transposed) {
    std::swap(sum.a, sum.b);
    std::swap(sum.a_layout, sum.b_layout);
    std::swap(sum.a_stats, sum.b_stats);
  }
  const bool contiguous = sum.b_layout.stride_k == 1;
  const auto kernel = contiguous ? chain_sum_few_kernel<true> : chain_sum_few_kernel<false>;
  const int shared = contiguous ? sizeof(Shared<true>) : sizeof(Shared<false>);
  static_assert(std::max(sizeof(Shared<true>), sizeof(Shared<false>)) <= 99 * 1024 - 128);
  LaunchShape shape = {0, kThreads, shared, 1, true};
  int resident = 0;
  OZAKI_RETURN_IF_ERROR(resident_clusters(address_of(kernel), shape, device, &resident));
  const int64_t strips = sum.a_layout.batch * ((sum.b_layout.rows + kColumns - 1) / kColumns);
  const int64_t row_tiles = tiles_of(sum.a_layout.rows);
  // Many outputs share a strip, but every CTA has a unit.
  const int span =
      static_cast<int>(std::clamp<int64_t>(strips * row_tiles / resident, 1, kMaxSpan));
  const int64_t units = strips * ((row_tiles + span - 1) / span);
  const int log2_part = ctz64(static_cast<uint64_t>(part_length(sum.a_layout.k)));
  shape.ctas = std::min<int64_t>(resident, units);
  return launch("chain_sum_few_kernel", kernel, shape, device, stream,
                FewSum{ChainSum(sum), transposed, log2_part, span, units});
}

}  // namespace ozaki
