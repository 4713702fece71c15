// The last rung of the ladder: outputs as integer sums of their products, common/accumulate.h.
#pragma once

#include "cpu/combine.h"

namespace ozaki {

// Writes the selected outputs of c float64[batch, m, n]: within k 2^-92 |A||B| and one rounding, or
// correctly rounded. Statistics int64[batch, rows, kStatsFields]: their occupancies say where there
// is nothing to add.
void ladder_sum(const Operand& lhs, const Operand& rhs, const int64_t* lhs_stats,
                const int64_t* rhs_stats, const Selection& selection, bool exact, double* c,
                const Scheduler& scheduler);

}  // namespace ozaki
