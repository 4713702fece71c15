// How many CTAs of a kernel __launch_bounds__ asks a multiprocessor to hold.
#pragma once

namespace ozaki {

// `most` where kernels were seen to have the registers for it. For other architectures the same code
// takes a few more, or a multiprocessor holds fewer threads: one CTA less, rather than spills.
constexpr int resident(int threads, int most) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 800 && __CUDA_ARCH__ != 900
  const int held = 1536 / threads;
  return most - 1 < held ? most - 1 : held;
#else
  (void)threads;
  return most;
#endif
}

}  // namespace ozaki
