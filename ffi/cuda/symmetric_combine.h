// From the residues of the computed tiles of a square back to float64, mirrored where it is
// symmetric.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "combine.h"

namespace ozaki {

// launch_combine for a square product of which v holds the computed tiles alone; `tiles` as in
// symmetry.h.
Status launch_symmetric_combine(const Combine& combine, const uint32_t* tiles, int moduli,
                                const Device& device, cudaStream_t stream);

}  // namespace ozaki
