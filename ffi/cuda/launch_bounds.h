// How many CTAs of a kernel __launch_bounds__ asks a multiprocessor to hold.
#pragma once

namespace ozaki {

// `most` where kernels were seen to have the registers for it. For other architectures the same code
// takes a few more, or a multiprocessor holds fewer threads: one CTA less, or as many as `elsewhere`
// says, rather than spills.
constexpr int resident(int threads, int most, int elsewhere) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 800 && __CUDA_ARCH__ != 900
  (void)most;
  const int held = 1536 / threads;
  return elsewhere < held ? elsewhere : held;
#else
  (void)threads, (void)elsewhere;
  return most;
#endif
}

constexpr int resident(int threads, int most) { return resident(threads, most, most - 1); }

}  // namespace ozaki
