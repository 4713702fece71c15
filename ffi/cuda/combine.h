// From the residues of the product, or its partial CRT sums, back to float64.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/layout.h"
#include "device.h"
#include "grouped_mma.h"

namespace ozaki {

struct Combine {
  const void* v;           // what grouped_mma wrote
  MmaOutput kind;          // of v
  const int32_t* scale_a;  // [batch, m]
  const int32_t* scale_b;  // [batch, n]
  double* c;               // [batch, m, n]
  // The operands: read only for outputs of rows and columns with non-finite elements.
  const double* a;
  const double* b;
  Layout a_layout, b_layout;  // rows m and n
};

// Enqueues C = X 2^-(mu + nu), X from the first `moduli` moduli, on `stream` of `device`, the
// current one. Allocates nothing, waits for nothing.
Status launch_combine(const Combine& combine, int moduli, const Device& device,
                      cudaStream_t stream);

}  // namespace ozaki
