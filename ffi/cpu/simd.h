// Loops compiled for several instruction sets, the best one chosen at run time.
#pragma once

#include "common/hd.h"
#include "cpu/grouped_mma.h"

namespace ozaki {

enum class Simd { kGeneric, kAvx2, kAvx512 };

// Follows mma_isa(), and with it JAX_OZAKI_CPU_ISA.
inline Simd simd() {
  static const Simd chosen = mma_isa().name == "avx512vnni" ? Simd::kAvx512
                             : mma_isa().name == "avx2"     ? Simd::kAvx2
                                                            : Simd::kGeneric;
  return chosen;
}

#if defined(__x86_64__)
template <typename Kernel, typename... Args>
__attribute__((target("avx2,fma"))) void run_avx2(Args... args) {
  Kernel::run(args...);
}

template <typename Kernel, typename... Args>
__attribute__((target("avx512f,avx512bw,avx512vl"))) void run_avx512(Args... args) {
  Kernel::run(args...);
}
#endif

// Kernel::run(args...) is code of integers and FMAs that the compiler vectorises: always inlined, so
// that each version of it is compiled for its own instruction set, all with the same results.
template <typename Kernel, typename... Args>
void run_simd(Args... args) {
#if defined(__x86_64__)
  if (simd() == Simd::kAvx512) return run_avx512<Kernel>(args...);
  if (simd() == Simd::kAvx2) return run_avx2<Kernel>(args...);
#endif
  Kernel::run(args...);
}

}  // namespace ozaki
