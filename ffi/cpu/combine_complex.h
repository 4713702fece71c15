// From v of both roots to the complex product: Chinese remainder theorem and one rounding of either
// part, special values.
#pragma once

#include "cpu/statistics.h"

namespace ozaki {

// c complex128[batch, m, n], as float64s, from v uint8[batch, 2, moduli, m, padded(n)] and the
// scales int32[batch, m] and int32[batch, n]. The operands, given as their parts (rows of lhs,
// columns of rhs), are read only where a scale is a sentinel.
void combine_complex(const uint8_t* v, int moduli, const int32_t* lhs_scale,
                     const int32_t* rhs_scale, const Operand& lhs, const Operand& rhs, double* c,
                     const Scheduler& scheduler);

}  // namespace ozaki
