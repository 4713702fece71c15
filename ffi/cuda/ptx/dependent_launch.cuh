// Programmatic dependent launch (nothing before sm_90): a kernel that begins while the one before it
// in the stream still runs.
#pragma once

namespace ozaki::ptx {

// Lets the next kernel begin once every CTA of this one has called this or ended.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before this one has ended and its writes can be read. All CTAs of a kernel
// that begins early wait, if only at their end: when it has ended so have all before it, which is
// what the next one relies on.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace ozaki::ptx
