// Outputs as float64 sums of their products in the order of common/chains.h.
#pragma once

#include "cpu/combine.h"

namespace ozaki {

// Writes the selected outputs of c float64[batch, m, n], kLeftToWindow where a sum is not taken.
void chain_sum(const Operand& lhs, const Operand& rhs, const int64_t* lhs_stats,
               const int64_t* rhs_stats, const Selection& selection, int64_t group, double* c,
               const Scheduler& scheduler);

}  // namespace ozaki
