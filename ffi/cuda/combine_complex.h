// From the residues of a complex product by both roots of -1 back to complex128.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/layout.h"
#include "device.h"

namespace ozaki {

struct ComplexCombine {
  const uint8_t* v;        // [batch, 2, moduli, m, np] of grouped_mma
  const int32_t* scale_a;  // [batch, m]
  const int32_t* scale_b;  // [batch, n]
  double* c;               // the parts of [batch, m, n]
  // The parts of the operands: read only for outputs of rows and columns with non-finite elements.
  const double* a;
  const double* b;
  Layout a_layout, b_layout;  // rows m and n
};

// Enqueues C = X 2^-(mu + nu), X from the first `moduli` complex moduli, on `stream` of
// `device`, the current one. Allocates nothing, waits for nothing.
Status launch_combine_complex(const ComplexCombine& combine, int moduli, const Device& device,
                              cudaStream_t stream);

}  // namespace ozaki
