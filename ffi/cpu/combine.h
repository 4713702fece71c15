// From v to the product: Chinese remainder theorem, one rounding, special values.
#pragma once

#include "cpu/flagged.h"
#include "cpu/statistics.h"

namespace ozaki {

// c float64[batch, m, n] from v uint8[batch, moduli, m, padded(n)] and the scales int32[batch, m]
// and int32[batch, n]. The operands (rows of lhs, columns of rhs) are read only where a scale is a
// sentinel.
void combine(const uint8_t* v, int moduli, const int32_t* lhs_scale, const int32_t* rhs_scale,
             const Operand& lhs, const Operand& rhs, double* c, const Scheduler& scheduler);

// The outputs of a ladder that this product gives: those whose rung, uint8[batch, m, padded(n)], is
// flagged.
struct Selection {
  const uint8_t* rung = nullptr;  // none: every output
  Flagged flagged;
};

// The same for the selected outputs, from the first `count` of v's `moduli` planes.
void combine(const uint8_t* v, int moduli, int count, const int32_t* lhs_scale,
             const int32_t* rhs_scale, const Operand& lhs, const Operand& rhs,
             const Selection& selection, double* c, const Scheduler& scheduler);

}  // namespace ozaki
