// Devices whose float64 units are half as many as those of float32: a few float64 instructions in
// place of dozens. Everything else is integer arithmetic, as consumer GPUs have few float64 units.
#pragma once

#if defined(__CUDA_ARCH__)
#define OZAKI_FULL_RATE_FLOAT64 \
  (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
#else
#define OZAKI_FULL_RATE_FLOAT64 0
#endif
