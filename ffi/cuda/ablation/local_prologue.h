// An ablation: residues made inside the tile of the product, from the float64 operands.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/device.h"

namespace ozaki {

struct LocalPrologue {
  const double* a;         // [batch, m, k]
  const double* b;         // [batch, k, n]
  const int32_t* scale_a;  // [batch, m]
  const int32_t* scale_b;  // [batch, n]
  uint8_t* v;              // [batch, moduli, m, np], as grouped_mma writes it
  int64_t batch, moduli, m, n, k;
};

// Enqueues it on `stream` of `device`, the current one. For up to 16 moduli and k <= kKBlock.
Status launch_local_prologue(const LocalPrologue& product, const Device& device,
                             cudaStream_t stream);

}  // namespace ozaki
