// The combine stage of a rung of the ladder: combine.h for the outputs of some rungs, from a number
// of moduli that the device alone knows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "combine.h"
#include "flagged_tiles.h"

namespace ozaki {

struct LadderCombine {
  Combine product;       // v: residues, [batch, planes, m, np]
  const int32_t* count;  // [1]: the moduli of v, at most `planes`
  const uint8_t* rung;   // [batch, m, np]
  FlaggedTiles flagged;  // by the rungs whose outputs are written
  bool seldom;           // most tiles are not flagged, as a rule
};

// Enqueues on `stream` of `device`, the current one. Outputs of other rungs keep what they hold.
// Allocates nothing, waits for nothing.
Status launch_ladder_combine(const LadderCombine& combine, int planes, const Device& device,
                             cudaStream_t stream);

}  // namespace ozaki
