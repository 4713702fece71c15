// Residues of the rows of an operand.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/layout.h"
#include "device.h"
#include "flagged_tiles.h"
#include "statistics.h"

namespace ozaki {

// All enqueue on `stream` of `device`, the current one; they allocate nothing and wait for
// nothing. residues: [batch, moduli, rows, padded_k(k)].

// Statistics, scales and residues; and unless coarse_plane is nullptr the coarse plane of every
// step-th block, [batch, 1, rows, padded_k(kept)] (common/planes.h).
Status launch_quantize(const double* x, const Layout& layout, int moduli, const ScaleBounds& bounds,
                       const StatisticsOutputs& outputs, uint8_t* residues, uint8_t* coarse_plane,
                       int64_t step, void* scratch, const Device& device, cudaStream_t stream);

// Residues of a block in k of rows whose scales, [batch, rows], are known.
Status launch_residues(const double* x, const Layout& layout, int moduli, const int32_t* scale,
                       uint8_t* residues, const Device& device, cudaStream_t stream);

// The same for the rows of flagged tiles alone, rows of the lhs or columns as rows of the rhs, and
// the first *count of `planes` moduli.
Status launch_flagged_residues(const double* x, const Layout& layout, int planes,
                               const int32_t* scale, const int32_t* count,
                               const FlaggedTiles& flagged, Side side, uint8_t* residues,
                               const Device& device, cudaStream_t stream);

}  // namespace ozaki
