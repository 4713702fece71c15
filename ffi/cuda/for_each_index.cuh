#pragma once

#include <type_traits>
#include <utility>

namespace ozaki {

// step(0), step(1), ... with constants, until one returns false.
template <typename Step, int... kIndices>
__device__ __forceinline__ void for_each_index(Step step, std::integer_sequence<int, kIndices...>) {
  (step(std::integral_constant<int, kIndices>()) && ...);
}

}  // namespace ozaki
