// An ablation: all moduli of an output and its whole CRT in one kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/device.h"

namespace ozaki {

struct FullFused {
  const uint8_t* lhs;      // [batch, moduli, m, kp]
  const uint8_t* rhs;      // [batch, moduli, n, kp]
  const int32_t* scale_a;  // [batch, m]
  const int32_t* scale_b;  // [batch, n]
  // [batch, m, k] and [batch, k, n]: read only for outputs of rows and columns with non-finite
  // elements.
  const double *a, *b;
  double* c;  // [batch, m, n]
  int64_t batch, m, n, k, kp;
};

// Enqueues C = X 2^-(mu + nu) on `stream` of `device`, the current one. For 9, 14 or 15 moduli and
// k <= kKBlock.
Status launch_full_fused(const FullFused& product, int moduli, const Device& device,
                         cudaStream_t stream);

}  // namespace ozaki
