// Magnitude planes of an operand's rows.
#pragma once

#include "cpu/flagged.h"
#include "cpu/statistics.h"

namespace ozaki {

// planes uint8[batch, count, rows, padded_k(kept)], count 1 (coarse) or 4 (fine), tails zero, of
// the rows that have a flagged tile. stats int64[batch, rows, kStatsFields].
void planes(const Operand& operand, const int64_t* stats, int count, const PlaneSubset& subset,
            const FlaggedSide& flagged, uint8_t* planes, const Scheduler& scheduler);

}  // namespace ozaki
