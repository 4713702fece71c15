// What both kernels of chain_sum.h share.
#pragma once

#include "chain_sum.h"
#include "common/chains.h"
#include "join_threads.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/cp_async_8.cuh"
#include "ptx/mbarrier.cuh"

namespace ozaki {

struct ChainSum : LadderSum {
  int log2_group;           // chains
  bool a_paired, b_paired;  // every other element is on a 16-byte boundary

  explicit ChainSum(const LadderSum& sum)
      : LadderSum(sum),
        log2_group(ctz64(static_cast<uint64_t>(sum.group))),
        a_paired(paired(sum.a, sum.a_layout)),
        b_paired(paired(sum.b, sum.b_layout)) {}

 private:
  // Of a run in memory, from its first element on.
  static bool paired(const double* x, const Layout& layout) {
    const int64_t across = layout.stride_k == 1 ? layout.stride_r : layout.stride_k;
    const bool runs = layout.stride_k == 1 || layout.stride_r == 1;
    return runs && reinterpret_cast<uintptr_t>(x) % 16 == 0 && layout.stride_b % 2 == 0 &&
           across % 2 == 0;
  }
};

// The wanted outputs of a tile, spread over the threads of a CTA.
template <int kThreads>
class WantedOutputs {
 public:
  // `rung` is that of the tile's first output.
  __device__ __forceinline__ WantedOutputs(const uint8_t* rung, int64_t np, uint32_t wanted,
                                           int64_t rows, int64_t columns) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = row_of(i), column = column_of(i);
      at_[i] = 0;
      if (row >= rows || column >= columns) continue;
      const uint4 rungs = *reinterpret_cast<const uint4*>(rung + row * np + column);
      const uint32_t words[] = {rungs.x, rungs.y, rungs.z, rungs.w};
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        at_[i] |= (wanted >> (words[j / 4] >> (j % 4 * 8) & 31) & 1) << j;
      }
      // Whatever a program has put past column n of np.
      at_[i] &= (1u << min(columns - column, int64_t{kVector})) - 1;
    }
  }

  // Of the whole tile. Barriers.
  __device__ __forceinline__ int count(int& shared) const {
    int own = 0;
#pragma unroll
    for (const uint32_t of_vector : at_) own += __popc(of_vector);
    return sum_of_threads(own, shared);
  }

  // visit(row, column) for the thread's own.
  template <typename Visit>
  __device__ __forceinline__ void for_own(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      for (uint32_t rest = at_[i]; rest != 0; rest &= rest - 1) {
        visit(row_of(i), column_of(i) + __ffs(rest) - 1);
      }
    }
  }

 private:
  static constexpr int kVector = 16, kVectors = kTile / kVector;
  static constexpr int kOwn = kTile * kVectors / kThreads;

  __device__ __forceinline__ static int row_of(int i) {
    return (i * kThreads + threadIdx.x) / kVectors;
  }
  __device__ __forceinline__ static int column_of(int i) {
    return threadIdx.x % kVectors * kVector;
  }

  uint32_t at_[kOwn];  // a bit an output of a vector
};

// Copies two elements, the second `step` after the first, of which `left` are there, zeros for
// others.
template <bool kPaired>
__device__ __forceinline__ void copy_pair(double* target, const double* source, int64_t step,
                                          int left) {
  if (kPaired) {
    ptx::cp_async_16_part(ptx::shared_address(target), source, left >= 2 ? 16 : left > 0 ? 8 : 0);
  } else {
    ptx::cp_async_8(ptx::shared_address(target), source, left > 0);
    ptx::cp_async_8(ptx::shared_address(target + 1), source + step, left > 1);
  }
}

// A thread's copies of kDepth elements of kRows neighbouring rows of an operand, as they lie in
// memory: `at` is [kRows][kPitch] along k, or [kDepth][kPitch] along the rows.
template <bool kContiguous, int kRows, int kDepth, int kPitch, int kThreads>
class BlockCopies {
 public:
  // `x`: the first row, of `rows` that there are.
  __device__ __forceinline__ BlockCopies(const double* x, const Layout& layout, int rows)
      : source_(x + (kContiguous ? across() * layout.stride_r + along()
                                 : across() * layout.stride_k + along() * layout.stride_r)),
        layout_(layout),
        rows_(rows) {}

  // From `first` on; zeros beyond the rows and k.
  template <bool kPaired>
  __device__ __forceinline__ void request(uint32_t first, double* at) const {
    const double* source = source_ + first * layout_.stride_k;
    const int k_left = static_cast<int>(layout_.k - first);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int place = i * kAtOnce + across();
      const int left = kContiguous ? (place < rows_ ? k_left - along() : 0)
                                   : (place < k_left ? rows_ - along() : 0);
      copy_pair<kPaired>(at + place * kPitch + along(), source,
                         kContiguous ? layout_.stride_k : layout_.stride_r, left);
      source += kAtOnce * (kContiguous ? layout_.stride_r : layout_.stride_k);
    }
  }

 private:
  static constexpr int kAlong = (kContiguous ? kDepth : kRows) / 2, kAtOnce = kThreads / kAlong;
  static constexpr int kCopies = (kContiguous ? kRows : kDepth) / kAtOnce;
  static_assert(kThreads % kAlong == 0 && kCopies > 0);

  __device__ __forceinline__ static int along() { return threadIdx.x % kAlong * 2; }
  __device__ __forceinline__ static int across() { return threadIdx.x / kAlong; }

  const double* source_;
  const Layout& layout_;
  int rows_;
};

template <typename Copies>
__device__ __forceinline__ void request(const Copies& copies, bool paired, uint32_t first,
                                        double* stage) {
  if (paired) {
    copies.template request<true>(first, stage);
  } else {
    copies.template request<false>(first, stage);
  }
}

__device__ __forceinline__ void store(double sum, double* target) {
  const uint64_t bits = __double_as_longlong(sum);
  *target = is_taken(bits) ? sum : __longlong_as_double(kLeftToWindow);
}

}  // namespace ozaki
