// Decisions in the epilogue of the coarse planes' product: an output's sum never leaves the kernel.
#pragma once

#include <cmath>

#include "certify.h"

namespace ozaki {

// The largest ratio so far, of which few can be the next: the others need no division.
__device__ __forceinline__ void keep_worst(float& worst, const Certificate& by) {
  if (by.error > 0.999f * worst * by.scale) worst = fmaxf(worst, by.ratio());
}

// Outputs of one tile of kTile x kTile that a warp decides.
class TileDecisions {
 public:
  // Of the tile of this row and column of a batch element.
  __device__ __forceinline__ TileDecisions(const CoarseBounds& bounds, int batch, int row,
                                           int column)
      : bounds_(bounds),
        rows_(batch * bounds.rows.count),
        columns_(batch * bounds.columns.count),
        index_((batch * bounds.tiles_m + row / kTile) * bounds.tiles_n + column / kTile) {
    const TileOccupancy of_rows = bounds.rows.tile[(rows_ + row) / kTile];
    const TileOccupancy of_columns = bounds.columns.tile[(columns_ + column) / kTile];
    dense_ = ((of_rows.missing | of_columns.missing) & bounds.full) == 0;
    skips_ = skips(of_rows.any & of_columns.any);
  }

  __device__ __forceinline__ RowBound row(int row) const {
    return load(bounds_.rows.bound + rows_ + row);
  }
  __device__ __forceinline__ RowBound column(int column) const {
    return load(bounds_.columns.bound + columns_ + column);
  }

  // The rungs of the sums of four outputs of a row as bytes; from column `end` on they are 0.
  // column_of(e), e < 4: their columns, `column` what is known of them.
  template <typename Column>
  __device__ __forceinline__ uint32_t decide_four(int row, RowBound of_row, const Column& column_of,
                                                  const RowBound (&column)[4], int end,
                                                  const uint32_t (&sum)[4]) {
    float shared[4];
    if (!dense_) {
      const uint64_t occupancy = bounds_.rows.occupancy[rows_ + row];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        shared[e] = overlap(occupancy, bounds_.columns.occupancy[columns_ + column_of(e)],
                            bounds_.part_length);
      }
    } else {
#pragma unroll
      for (float& length : shared) length = INFINITY;
    }
    uint32_t word = 0, inside = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Decision decision = decide(within(shared[e], of_row), within(shared[e], column[e]),
                                       static_cast<int32_t>(sum[e]), bounds_.tau_half);
      word |= uint32_t{decision.rung} << (8 * e);
      inside |= (column_of(e) < end ? 255u : 0) << (8 * e);
      keep_worst(worst_, decision.by);
    }
    static_assert(kUndecided == 0 && kCoarse == 1);
    certified_ |= word & inside;
    undecided_ |= ~word & inside & 0x01010101u;
    return word & inside;
  }

  // Tells the tile. By all lanes of a warp.
  __device__ __forceinline__ void store() {
    uint32_t set = (undecided_ != 0 ? 1u << kUndecided : 0) | (certified_ != 0 ? 1u << kCoarse : 0);
    set = __reduce_or_sync(~0u, set);
    // Floats that are not negative are in the order of their bits.
    const uint32_t worst = __reduce_max_sync(~0u, __float_as_uint(worst_));
    if (threadIdx.x % 32 != 0 || set == 0) return;
    atomicOr(bounds_.tiles + index_, set | skips_);
    if (worst != 0) atomicMax(reinterpret_cast<uint32_t*>(bounds_.worst) + index_, worst);
  }

 private:
  // Never written here: the loads may be moved.
  __device__ __forceinline__ static RowBound load(const RowBound* source) {
    const float4 x = __ldg(reinterpret_cast<const float4*>(source));
    return {x.x, x.y, x.z, x.w};
  }

  const CoarseBounds& bounds_;
  int64_t rows_, columns_, index_;
  bool dense_;
  uint32_t skips_, certified_ = 0, undecided_ = 0;
  float worst_ = 0;
};

}  // namespace ozaki
