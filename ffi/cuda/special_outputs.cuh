// Outputs of rows and columns with non-finite elements, neither of them with a NaN: what their
// products add up to.
#pragma once

#include <cuda_runtime_api.h>

#include "common/complex.h"
#include "common/layout.h"

namespace ozaki {

template <typename Arguments>
__device__ __forceinline__ uint64_t special_output(const Arguments& args, int64_t batch, int64_t i,
                                                   int64_t j) {
  SpecialSum sum;
  for (int64_t h = 0; h < args.a_layout.k; ++h) {
    sum.add(load_bits(args.a + args.a_layout.offset(batch, i, h)),
            load_bits(args.b + args.b_layout.offset(batch, j, h)));
  }
  return sum.bits();
}

// Both parts of a complex one.
template <typename Arguments>
__device__ __forceinline__ ulonglong2 complex_special_output(const Arguments& args, int64_t batch,
                                                             int64_t i, int64_t j) {
  ComplexSpecialSum sum;
  for (int64_t h = 0; h < args.a_layout.k; h += 2) {
    uint64_t x[2], y[2];
    for (int part = 0; part < 2; ++part) {
      x[part] = load_bits(args.a + args.a_layout.offset(batch, i, h + part));
      y[part] = load_bits(args.b + args.b_layout.offset(batch, j, h + part));
    }
    sum.add(x, y);
  }
  return make_ulonglong2(sum.re.bits(), sum.im.bits());
}

}  // namespace ozaki
