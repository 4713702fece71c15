#pragma once

#include <cstdint>

namespace ozaki {

// What the threads of a CTA bring, joined in shared memory by join(&shared, own). 0 brings nothing.
// Barriers.
template <typename T, typename Join>
__device__ __forceinline__ T join_threads(T own, T& shared, const Join& join) {
  __syncthreads();
  if (threadIdx.x == 0) shared = 0;
  __syncthreads();
  if (own != 0) join(&shared, own);
  __syncthreads();
  return shared;
}

__device__ __forceinline__ int sum_of_threads(int own, int& shared) {
  return join_threads(own, shared, [](int* to, int x) { atomicAdd(to, x); });
}

}  // namespace ozaki
