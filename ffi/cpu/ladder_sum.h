// The last rung of the ladder: outputs as sums of their products, common/accumulate.h and chains.h.
#pragma once

#include "cpu/combine.h"

namespace ozaki {

// Writes the selected outputs of c float64[batch, m, n]: correctly rounded if `exact`; else float64
// sums in groups of `group` chains; where those are not taken, or `group` is 0, within k 2^-92 |A||B|
// and one rounding. Statistics int64[batch, rows, kStatsFields]: their occupancies say where there
// is nothing to add.
void ladder_sum(const Operand& lhs, const Operand& rhs, const int64_t* lhs_stats,
                const int64_t* rhs_stats, const Selection& selection, bool exact, int64_t group,
                double* c, const Scheduler& scheduler);

}  // namespace ozaki
