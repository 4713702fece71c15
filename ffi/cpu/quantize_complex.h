// From complex128 operands to residues by both roots of -1 (common/complex.h):
// uint8[batch, 2, moduli, rows, padded_k(k)], a_r + s a_i before a_r - s a_i, the tails zero.
#pragma once

#include "cpu/statistics.h"

namespace ozaki {

// Residues, scale and stats of an operand, given as its parts.
void quantize_complex(const Operand& parts, int moduli, uint8_t* residues, int32_t* scale,
                      int64_t* stats, const Scheduler& scheduler);

// Residues for given scales, int32[batch, rows]: the operand is a block in k of the scales' rows.
void residues_complex(const Operand& parts, int moduli, const int32_t* scale, uint8_t* residues,
                      const Scheduler& scheduler);

}  // namespace ozaki
