// From float64 operands to residues: uint8[batch, moduli, rows, padded_k(k)], the tails zero.
#pragma once

#include "cpu/flagged.h"
#include "cpu/statistics.h"

namespace ozaki {

// Residues, scale and stats (see statistics.h) of an operand.
void quantize(const Operand& operand, int moduli, const ScaleBounds& bounds, uint8_t* residues,
              int32_t* scale, int64_t* stats, const Scheduler& scheduler);

// Residues for given scales, int32[batch, rows]: the operand is a block in k of the scales' rows.
void residues(const Operand& operand, int moduli, const int32_t* scale, uint8_t* out,
              const Scheduler& scheduler);

// The same for the first `count` of `moduli` moduli, of rows with a flagged tile. The scales are
// those of all of them.
void residues(const Operand& operand, int moduli, int count, const int32_t* scale,
              const FlaggedSide& flagged, uint8_t* residues, const Scheduler& scheduler);

}  // namespace ozaki
