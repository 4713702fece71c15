// What the handlers of NVIDIA GPUs share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdlib>

#include "bindings/ladder.h"
#include "cuda/combine.h"
#include "cuda/grouped_mma.h"
#include "cuda/statistics.h"

namespace ozaki {

using Stream = ffi::PlatformStream<cudaStream_t>;

// The kernels of the grouped product that JAX_OZAKI_CUDA_MMA asks for, read once.
struct MmaChoice {
  std::string name, error;
  MmaPath path;
};

inline MmaChoice choose_mma() {
  const char* variable = std::getenv("JAX_OZAKI_CUDA_MMA");
  const std::string name = variable && *variable ? variable : "auto";
  if (name == "auto") return {name, "", MmaPath::kAuto};
  if (name == "wgmma") return {name, "", MmaPath::kWgmma};
  if (name == "mma_sync") return {name, "", MmaPath::kMmaSync};
  return {name, "JAX_OZAKI_CUDA_MMA is '" + name + "', allowed are: auto, wgmma, mma_sync",
          MmaPath::kAuto};
}

inline const MmaChoice& mma_choice() {
  static const MmaChoice choice = choose_mma();
  return choice;
}

// Runs `launch(device)` where the checks hold and this build covers the current device.
template <typename Launch>
ffi::Error enqueue(const Checks& checks, const Launch& launch) {
  if (!checks.ok()) return checks.error();
  const Device* device = nullptr;
  if (const Status status = current_device(device); !status.ok()) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                      "jax_ozaki: " + status.cause() + " (built for: " OZAKI_CUDA_ARCHS ")");
  }
  if (const Status status = launch(*device); !status.ok()) {
    return ffi::Error::Internal("jax_ozaki: " + status.cause());
  }
  return ffi::Error::Success();
}

// The kernels count the rows of a batch in 32 bits; an empty operand would be an empty launch.
inline void check_limits(Checks& checks, const char* name, const Layout& layout) {
  checks.require(layout.batch >= 1 && layout.rows >= 1 && layout.k >= 1, "the layout of ", name,
                 " is empty");
  checks.require(!checks.ok() || layout.rows <= INT32_MAX / layout.batch, name,
                 " has more than 2^31 - 1 rows in its batch");
  checks.require(layout.k <= INT32_MAX, name, " has k above 2^31 - 1");
}

inline void check_scratch(Checks& checks, const Layout& layout, const U8& scratch) {
  if (!checks.ok()) return;
  const int64_t given = scratch.element_count(), needed = scratch_bytes(layout);
  checks.require(given >= needed, "scratch has ", given, " bytes, needed are ", needed);
}

// Checked arguments of a combine stage; of complex ones the parts.
template <typename X>
Combine combine_of(Checks& checks, const void* v, MmaOutput kind, const S32& scale_a,
                   const S32& scale_b, const X& a, const X& b, X& c,
                   const CombineAttributes& attributes) {
  CombineLayouts layouts = combine_layouts(c, attributes);
  if (std::is_same_v<X, C128>) {
    layouts = {layout_of_parts(layouts.a), layout_of_parts(layouts.b)};
  }
  check_limits(checks, "a", layouts.a);
  check_limits(checks, "b", layouts.b);
  return {v,
          kind,
          scale_a.typed_data(),
          scale_b.typed_data(),
          reinterpret_cast<double*>(c.typed_data()),
          reinterpret_cast<const double*>(a.typed_data()),
          reinterpret_cast<const double*>(b.typed_data()),
          layouts.a,
          layouts.b};
}

// A grouped product of checked operands.
inline GroupedMma grouped_mma_of(const U8& lhs, const U8& rhs, void* output, MmaOutput kind) {
  const MmaExtents extents = mma_extents(lhs, rhs);
  return {lhs.typed_data(), rhs.typed_data(), output,     extents.batch, extents.moduli,
          extents.m,        extents.n,        extents.kp, kind};
}

// Enqueues it on the kernels that JAX_OZAKI_CUDA_MMA asks for.
inline ffi::Error enqueue_mma(Checks checks, const GroupedMma& mma, cudaStream_t stream) {
  const MmaChoice& choice = mma_choice();
  checks.require(choice.error.empty(), choice.error);
  return enqueue(checks, [&](const Device& device) {
    const Status status = launch_grouped_mma(mma, device, stream, choice.path);
    if (status.ok() || choice.path == MmaPath::kAuto) return status;
    return Status(status.cause() + " (JAX_OZAKI_CUDA_MMA is '" + choice.name + "')");
  });
}

// A matrix kernel's list of the flagged tiles of an output.
inline void check_list(Checks& checks, const MmaExtents& extents, const U8& scratch) {
  if (!checks.ok()) return;
  const int64_t needed = tile_list_bytes(extents.batch, extents.m, extents.n);
  const int64_t given = scratch.element_count();
  checks.require(given >= needed, "scratch has ", given, " bytes, needed are ", needed);
}

LadderHandlers ladder_handlers();

// The handlers of products that may be symmetric.
void add_symmetric(nb::dict& capsules);

}  // namespace ozaki
