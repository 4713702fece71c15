// From the residues of a complex product by both roots of -1 back to complex128.
#pragma once

#include "combine.h"

namespace ozaki {

// launch_combine where layouts count parts: v is uint8 [batch, 2, moduli, m, np], and the moduli are
// complex ones.
Status launch_combine_complex(const Combine& combine, int moduli, const Device& device,
                              cudaStream_t stream);

}  // namespace ozaki
