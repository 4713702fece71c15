// The outputs of the last rung as float64 sums of their products, common/chains.h.
#pragma once

#include "ladder_sum.h"

namespace ozaki {

// Writes kLeftToWindow where a sum is not taken. Enqueues on `stream` of the current device.
Status launch_chain_sum(const LadderSum& sum, cudaStream_t stream);

}  // namespace ozaki
