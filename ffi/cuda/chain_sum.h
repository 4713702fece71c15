// The outputs of the last rung as float64 sums of their products, common/chains.h.
//
// Two kernels, since what bounds them differs: many outputs of a tile are summed as a matrix product
// of whole blocks, few one by one. Both find the tiles that are theirs alone.
#pragma once

#include "ladder_sum.h"

namespace ozaki {

// Up to so many outputs of a tile are few.
constexpr int kFewOutputs = 384;

// Both write kLeftToWindow where a sum is not taken, and enqueue on `stream` of `device`, the current
// one.
Status launch_chain_sum_dense(const LadderSum& sum, const Device& device, cudaStream_t stream);
Status launch_chain_sum_few(const LadderSum& sum, const Device& device, cudaStream_t stream);

}  // namespace ozaki
