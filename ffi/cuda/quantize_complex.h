// Residues of the rows of a complex operand by both roots of -1 (common/complex.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/layout.h"
#include "device.h"
#include "statistics.h"

namespace ozaki {

// As launch_quantize and launch_residues, for an operand given as its parts.
// residues: [batch, 2, moduli, rows, padded_k(k / 2)], a_r + s a_i before a_r - s a_i.

Status launch_quantize_complex(const double* parts, const Layout& layout, int moduli,
                               const StatisticsOutputs& outputs, uint8_t* residues, void* scratch,
                               const Device& device, cudaStream_t stream);

Status launch_residues_complex(const double* parts, const Layout& layout, int moduli,
                               const int32_t* scale, uint8_t* residues, const Device& device,
                               cudaStream_t stream);

}  // namespace ozaki
