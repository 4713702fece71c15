// The Python module _ablation: kernels that exist so that the benchmark can compare the pipeline with
// them. Nothing else uses it, and it is built on request only.
#include <nanobind/stl/string.h>

#include "bindings/cuda.h"
#include "cuda/ablation/full_fused.h"
#include "cuda/ablation/local_prologue.h"

namespace ozaki {
namespace {

constexpr char kFullFusedTarget[] = "jax_ozaki.ablation.full_fused.v1";
constexpr char kLocalPrologueTarget[] = "jax_ozaki.ablation.local_prologue.v1";
constexpr char kMmaSyncTarget[] = "jax_ozaki.ablation.mma_sync.v1";

struct Extents {
  int64_t batch, m, n, k;
};

// Of a [batch, m, k] and b [batch, k, n].
Extents check_operands(Checks& checks, const F64& a, const F64& b, const S32& scale_a,
                       const S32& scale_b) {
  const Extents extents = {
      Checks::dimension(a.dimensions(), 0), Checks::dimension(a.dimensions(), 1),
      Checks::dimension(b.dimensions(), 2), Checks::dimension(a.dimensions(), 2)};
  checks.rank("a", a.dimensions(), 3);
  checks.shape("b", b.dimensions(), {extents.batch, extents.k, extents.n});
  checks.shape("scale_a", scale_a.dimensions(), {extents.batch, extents.m});
  checks.shape("scale_b", scale_b.dimensions(), {extents.batch, extents.n});
  check_limits(checks, "a", {extents.batch, extents.m, extents.k, 0, 0, 0});
  check_limits(checks, "b", {extents.batch, extents.n, extents.k, 0, 0, 0});
  return extents;
}

// (lhs, rhs, scale_a, scale_b, a, b) -> c
ffi::Error full_fused_handler(cudaStream_t stream, U8 lhs, U8 rhs, S32 scale_a, S32 scale_b, F64 a,
                              F64 b, Result<F64> c) {
  Checks checks(kFullFusedTarget);
  const auto [batch, m, n, k] = check_operands(checks, a, b, scale_a, scale_b);
  const int moduli = moduli_of(lhs);
  checks.moduli(moduli);
  checks.shape("lhs", lhs.dimensions(), {batch, moduli, m, padded_k(k)});
  checks.shape("rhs", rhs.dimensions(), {batch, moduli, n, padded_k(k)});
  checks.shape("c", c->dimensions(), {batch, m, n});
  const FullFused product = {lhs.typed_data(),
                             rhs.typed_data(),
                             scale_a.typed_data(),
                             scale_b.typed_data(),
                             a.typed_data(),
                             b.typed_data(),
                             c->typed_data(),
                             batch,
                             m,
                             n,
                             k,
                             padded_k(k)};
  return enqueue(checks, [&](const Device& device) {
    return launch_full_fused(product, moduli, device, stream);
  });
}

// (a, b, scale_a, scale_b) -> v as that of grouped_mma
ffi::Error local_prologue_handler(cudaStream_t stream, F64 a, F64 b, S32 scale_a, S32 scale_b,
                                  Result<U8> v) {
  Checks checks(kLocalPrologueTarget);
  const auto [batch, m, n, k] = check_operands(checks, a, b, scale_a, scale_b);
  const int moduli = moduli_of(*v);
  checks.moduli(moduli);
  checks.shape("v", v->dimensions(), {batch, moduli, m, padded(n)});
  const LocalPrologue product = {a.typed_data(),
                                 b.typed_data(),
                                 scale_a.typed_data(),
                                 scale_b.typed_data(),
                                 v->typed_data(),
                                 batch,
                                 moduli,
                                 m,
                                 n,
                                 k};
  return enqueue(
      checks, [&](const Device& device) { return launch_local_prologue(product, device, stream); });
}

// grouped_mma by mma.sync, the instruction of the kernels above, on any device.
ffi::Error mma_sync_handler(cudaStream_t stream, U8 lhs, U8 rhs, Result<V> v) {
  const Checks checks = check_grouped_mma(lhs, rhs, *v, VTypes::kBytesAndWords);
  const MmaOutput kind = is_words(*v) ? MmaOutput::kPartialCrt : MmaOutput::kResidues;
  return enqueue(checks, [&](const Device& device) {
    return launch_grouped_mma(grouped_mma_of(lhs, rhs, v->untyped_data(), kind), device, stream,
                              MmaPath::kMmaSync);
  });
}

XLA_FFI_DEFINE_HANDLER(kFullFused, full_fused_handler,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<U8>()
                           .Arg<U8>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<F64>()
                           .Arg<F64>()
                           .Ret<F64>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(
    kLocalPrologue, local_prologue_handler,
    ffi::Ffi::Bind().Ctx<Stream>().Arg<F64>().Arg<F64>().Arg<S32>().Arg<S32>().Ret<U8>(),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kMmaSync, mma_sync_handler, bind_grouped_mma<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});

nb::dict registrations() {
  nb::dict capsules;
  add_handler(capsules, kFullFusedTarget, kFullFused);
  add_handler(capsules, kLocalPrologueTarget, kLocalPrologue);
  add_handler(capsules, kMmaSyncTarget, kMmaSync);
  return capsules;
}

}  // namespace
}  // namespace ozaki

NB_MODULE(_ablation, module) {
  using namespace ozaki;
  module.def(
      "registrations", [] { return registrations(); },
      "Target name -> capsule of its FFI handler.");
  module.def(
      "build_info", [] { return common_build_info(); },
      "What this module was built from, and how.");
}
