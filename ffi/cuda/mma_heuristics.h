// Which tile shape a grouped product runs on, and in which order its tiles are walked. Every choice
// gives the same bits.
#pragma once

#include <cstdint>

#include "mma_launch.h"

namespace ozaki {

bool is_wgmma(TileShape shape);

// `wgmma`: sm_90a's kernel may be used, beside that of mma.sync.
TileShape choose_tile_shape(const GroupedMma& mma, bool wgmma, int multiprocessors);

// False when one problem has more tiles than the kernels count.
bool make_tile_grid(const GroupedMma& mma, TileShape shape, TileGrid* grid);

}  // namespace ozaki
