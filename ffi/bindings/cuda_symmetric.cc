// FFI handlers of products that may be symmetric, which only this platform has: cuda.cc.
#include "bindings/cuda.h"
#include "cuda/symmetric_combine.h"
#include "cuda/symmetry.h"

namespace ozaki {
namespace {

constexpr char kSymmetryTarget[] = "jax_ozaki.symmetry.v1";
constexpr char kSymmetricMmaTarget[] = "jax_ozaki.symmetric_mma.v1";
constexpr char kSymmetricCombineTarget[] = "jax_ozaki.symmetric_combine.v1";
constexpr char kSymmetricMirrorTarget[] = "jax_ozaki.symmetric_mirror.v1";

void check_square_tiles(Checks& checks, const U32& tiles, int64_t batch, int64_t m, int64_t n) {
  checks.require(m == n, "the product is not square: ", m, " rows and ", n, " columns");
  check_tiles(checks, tiles, batch, m, n);
}

// (x) -> tiles, as in cuda/symmetry.h
ffi::Error symmetry_handler(cudaStream_t stream, F64 x, Result<U32> tiles, Layout layout) {
  Checks checks(kSymmetryTarget);
  checks.layout("x", layout, x.element_count());
  check_square_tiles(checks, *tiles, layout.batch, layout.rows, layout.k);
  check_limits(checks, "x", layout);
  return enqueue(checks, [&](const Device& device) {
    return launch_symmetry(x.typed_data(), layout, tiles->typed_data(), device, stream);
  });
}

// (lhs, rhs, tiles) -> (v, scratch): the computed tiles of v
ffi::Error symmetric_mma_handler(cudaStream_t stream, U8 lhs, U8 rhs, U32 tiles, Result<V> v,
                                 Result<U8> scratch) {
  const MmaExtents extents = mma_extents(lhs, rhs);
  Checks checks = check_grouped_mma(lhs, rhs, *v, VTypes::kBytes, kSymmetricMmaTarget);
  check_square_tiles(checks, tiles, extents.batch, extents.m, extents.n);
  check_list(checks, extents, *scratch);
  GroupedMma mma = grouped_mma_of(lhs, rhs, v->untyped_data(), MmaOutput::kFlaggedResidues);
  mma.flagged = {tiles.typed_data(), kComputed, extents.m, extents.n};
  mma.list = reinterpret_cast<TileList*>(scratch->typed_data());
  mma.symmetry = tiles.typed_data() + symmetry_flag(extents.n);
  return enqueue_mma(checks, mma, stream);
}

// (v, scale_a, scale_b, a, b, tiles, c?) -> c, which keeps what is neither computed nor mirrored
ffi::Error symmetric_combine_handler(cudaStream_t stream, U8 v, S32 scale_a, S32 scale_b, F64 a,
                                     F64 b, U32 tiles, ffi::RemainingArgs earlier, Result<F64> c,
                                     CombineAttributes attributes) {
  const CombineLayouts layouts = combine_layouts(*c, attributes);
  const int64_t batch = layouts.a.batch, m = layouts.a.rows, n = layouts.b.rows;
  Checks checks = check_combine(kSymmetricCombineTarget, scale_a, scale_b, a, b, *c, attributes);
  checks.shape("v", v.dimensions(), {batch, attributes.moduli, m, padded(n)});
  check_square_tiles(checks, tiles, batch, m, n);
  check_earlier(checks, earlier, *c);
  const Combine combine = combine_of(checks, v.untyped_data(), MmaOutput::kResidues, scale_a,
                                     scale_b, a, b, *c, attributes);
  return enqueue(checks, [&](const Device& device) {
    return launch_symmetric_combine(combine, tiles.typed_data(),
                                    static_cast<int>(attributes.moduli), device, stream);
  });
}

// (c, tiles) -> c, in its buffer
ffi::Error symmetric_mirror_handler(cudaStream_t stream, F64 earlier, U32 tiles, Result<F64> c) {
  Checks checks(kSymmetricMirrorTarget);
  checks.rank("c", c->dimensions(), 3);
  const int64_t batch = Checks::dimension(c->dimensions(), 0);
  const int64_t n = Checks::dimension(c->dimensions(), 2);
  check_square_tiles(checks, tiles, batch, Checks::dimension(c->dimensions(), 1), n);
  checks.require(batch >= 1 && n >= 1, "c is empty");
  checks.require(earlier.untyped_data() == c->untyped_data(),
                 "the earlier c is not the buffer of the result");
  return enqueue(checks, [&](const Device& device) {
    return launch_mirror(c->typed_data(), batch, n, tiles.typed_data(), device, stream);
  });
}

XLA_FFI_DEFINE_HANDLER(kSymmetricMirror, symmetric_mirror_handler,
                       ffi::Ffi::Bind().Ctx<Stream>().Arg<F64>().Arg<U32>().Ret<F64>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kSymmetry, symmetry_handler,
                       ffi::Ffi::Bind().Ctx<Stream>().Arg<F64>().Ret<U32>().Attrs<Layout>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(
    kSymmetricMma, symmetric_mma_handler,
    ffi::Ffi::Bind().Ctx<Stream>().Arg<U8>().Arg<U8>().Arg<U32>().Ret<V>().Ret<U8>(),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kSymmetricCombine, symmetric_combine_handler,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<U8>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<F64>()
                           .Arg<F64>()
                           .Arg<U32>()
                           .RemainingArgs()
                           .Ret<F64>()
                           .Attrs<CombineAttributes>(),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

void add_symmetric(nb::dict& capsules) {
  add_handler(capsules, kSymmetryTarget, kSymmetry);
  add_handler(capsules, kSymmetricMmaTarget, kSymmetricMma);
  add_handler(capsules, kSymmetricCombineTarget, kSymmetricCombine);
  add_handler(capsules, kSymmetricMirrorTarget, kSymmetricMirror);
}

}  // namespace ozaki
