// The last rung of the ladder: outputs as integer sums of their products, common/accumulate.h.
#pragma once

#include "cpu/combine.h"

namespace ozaki {

// Writes the selected outputs of c float64[batch, m, n]: within k 2^-92 |A||B| and one rounding, or
// correctly rounded.
void ladder_sum(const Operand& lhs, const Operand& rhs, const Selection& selection, bool exact,
                double* c, const Scheduler& scheduler);

}  // namespace ozaki
