// How the outputs [batch, m, n] of a combine stage are dealt out to its threads.
#pragma once

#include <cstdint>

#include "common/layout.h"

namespace ozaki {

// In blocks, that of a CTA of `threads` threads: (threads >> log2_lanes) rows, counted through the
// batch, by `columns` << log2_lanes columns, `columns` neighbouring ones a thread.
struct OutputGrid {
  int64_t np;
  int log2_lanes;
  uint32_t column_blocks;
  int64_t blocks;

  // Where a thread's outputs begin. Some are beyond the last row or column.
  struct Place {
    uint32_t row, column;
  };

  // a and b: the layouts of the operands, of rows m and n.
  OutputGrid(const Layout& a, const Layout& b, int threads, int columns)
      : np(padded(b.rows)), log2_lanes(0) {
    const int64_t lanes = (b.rows + columns - 1) / columns;
    while ((1 << log2_lanes) < lanes && (1 << log2_lanes) < threads) ++log2_lanes;
    const int64_t width = int64_t{columns} << log2_lanes, height = threads >> log2_lanes;
    column_blocks = static_cast<uint32_t>((b.rows + width - 1) / width);
    blocks = (a.batch * a.rows + height - 1) / height * column_blocks;
  }

  template <int kThreads, int kColumns>
  __device__ __forceinline__ Place place(uint32_t block) const {
    const uint32_t row_block = block / column_blocks;
    const uint32_t column_block = block - row_block * column_blocks;
    const uint32_t lane = threadIdx.x & ((1u << log2_lanes) - 1);
    return {row_block * (kThreads >> log2_lanes) + (threadIdx.x >> log2_lanes),
            ((column_block << log2_lanes) + lane) * kColumns};
  }
};

}  // namespace ozaki
