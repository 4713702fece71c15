// FFI handlers of the CUDA stages of certified contracts: cuda.cc.
#include "bindings/cuda.h"
#include "cuda/certify.h"
#include "cuda/ladder_combine.h"
#include "cuda/ladder_sum.h"
#include "cuda/planes.h"
#include "cuda/quantize.h"

namespace ozaki {
namespace {

// The flagged tiles as one side of the product sees them, once `tiles` has been checked.
FlaggedTiles flagged_tiles(const U32& tiles, int64_t rungs) {
  const int64_t tiles_m = Checks::dimension(tiles.dimensions(), 1);
  const int64_t tiles_n = Checks::dimension(tiles.dimensions(), 2);
  return {tiles.typed_data(), rungs, tiles_m * kTile, tiles_n * kTile};
}

ffi::Error quantize_handler(cudaStream_t stream, F64 x, Result<U8> residues, Result<S32> scale,
                            Result<S64> stats, Result<U8> plane, Result<U8> scratch,
                            LadderQuantizeAttributes attributes) {
  const Layout& layout = attributes.layout;
  Checks checks = check_ladder_quantize(x, attributes, *residues, *scale, *stats, *plane);
  check_limits(checks, "x", layout);
  check_scratch(checks, layout, *scratch);
  return enqueue(checks, [&](const Device& device) {
    const int moduli = moduli_of(*residues);
    return launch_quantize(x.typed_data(), layout, moduli,
                           scale_bounds(moduli, attributes.fewer_moduli, attributes.most_rounded),
                           {scale->typed_data(), stats->typed_data()}, residues->typed_data(),
                           plane->typed_data(), attributes.step, scratch->typed_data(), device,
                           stream);
  });
}

ffi::Error planes_handler(cudaStream_t stream, F64 x, S64 stats, U32 tiles, Result<U8> out,
                          PlanesAttributes attributes) {
  Checks checks = check_planes(x, stats, tiles, *out, attributes);
  const Layout& layout = attributes.layout;
  check_limits(checks, "x", layout);
  return enqueue(checks, [&](const Device& device) {
    return launch_planes({x.typed_data(),
                          layout,
                          stats.typed_data(),
                          {layout.k, attributes.step},
                          static_cast<Side>(attributes.side),
                          flagged_tiles(tiles, attributes.rungs),
                          out->typed_data()},
                         planes_of(*out), device, stream);
  });
}

GroupedMma flagged_mma(const U8& lhs, const U8& rhs, void* output, MmaOutput kind, const U32& tiles,
                       int64_t rungs, U8& scratch) {
  GroupedMma mma = grouped_mma_of(lhs, rhs, output, kind);
  mma.flagged = flagged_tiles(tiles, rungs);
  mma.list = reinterpret_cast<TileList*>(scratch.typed_data());
  return mma;
}

ffi::Error magnitude_handler(cudaStream_t stream, U8 lhs, U8 rhs, U32 tiles, Result<S32> sums,
                             Result<U8> scratch, MmaAttributes attributes) {
  Checks checks = check_magnitude(lhs, rhs, tiles, *sums, attributes);
  check_list(checks, mma_extents(lhs, rhs), *scratch);
  GroupedMma mma = flagged_mma(lhs, rhs, sums->untyped_data(), MmaOutput::kFlaggedSums, tiles,
                               attributes.rungs, *scratch);
  if (planes_of(lhs) == kCoarsePlanes) mma.list = nullptr;  // wanted everywhere
  return enqueue_mma(checks, mma, stream);
}

ffi::Error mma_handler(cudaStream_t stream, U8 lhs, U8 rhs, S32 count, U32 tiles, Result<U8> v,
                       Result<U8> scratch, MmaAttributes attributes) {
  Checks checks = check_ladder_mma(lhs, rhs, count, tiles, *v, attributes);
  check_list(checks, mma_extents(lhs, rhs), *scratch);
  GroupedMma mma = flagged_mma(lhs, rhs, v->untyped_data(), MmaOutput::kFlaggedResidues, tiles,
                               attributes.rungs, *scratch);
  mma.count = count.typed_data();
  return enqueue_mma(checks, mma, stream);
}

// Checked arguments that both certificates have.
template <typename Attributes>
Certify certify_of(Checks& checks, const S32& sums, const S32& scale_a, const S64& stats_a,
                   const S32& scale_b, const S64& stats_b, U8& rung, U32& tiles, F32& worst,
                   const Attributes& attributes) {
  const auto [batch, m, n] = certify_extents(sums, attributes.n);
  checks.require(batch >= 1 && m >= 1 && n >= 1, "there are no outputs");
  Certify certify = {};
  certify.sums = sums.typed_data();
  certify.rows = {stats_a.typed_data(), scale_a.typed_data(), nullptr};
  certify.columns = {stats_b.typed_data(), scale_b.typed_data(), nullptr};
  certify.batch = batch, certify.m = m, certify.n = n, certify.k = attributes.k;
  certify.tau_half = attributes.tau_half;
  certify.rung = rung.typed_data(), certify.tiles = tiles.typed_data();
  certify.worst = worst.typed_data();
  return certify;
}

ffi::Error certify_handler(cudaStream_t stream, S32 sums, S32 scale_a, S64 stats_a, S32 scale_b,
                           S64 stats_b, Result<U8> rung, Result<U32> tiles, Result<F32> worst,
                           Result<S32> count, Result<S32> wide_count, Result<S32> wide_scale_a,
                           Result<S32> wide_scale_b, Result<U8> scratch,
                           CertifyAttributes attributes) {
  Checks checks = check_certify(sums, scale_a, stats_a, scale_b, stats_b, *rung, *tiles, *worst,
                                *count, *wide_count, *wide_scale_a, *wide_scale_b, attributes);
  Certify certify = certify_of(checks, sums, scale_a, stats_a, scale_b, stats_b, *rung, *tiles,
                               *worst, attributes);
  certify.rows.wide_scale = wide_scale_a->typed_data();
  certify.columns.wide_scale = wide_scale_b->typed_data();
  const ModulusCounts counts = {attributes.rung_moduli(), count->typed_data(),
                                wide_count->typed_data()};
  const int64_t needed = bound_bytes(certify.batch, certify.m, certify.n);
  const int64_t given = scratch->element_count();
  checks.require(given >= needed, "scratch has ", given, " bytes, needed are ", needed);
  return enqueue(checks, [&](const Device& device) {
    return launch_certify(certify, counts, scratch->untyped_data(), device, stream);
  });
}

ffi::Error certify_fine_handler(cudaStream_t stream, S32 sums, U8 rung, U32 tiles, S32 scale_a,
                                S64 stats_a, S32 scale_b, S64 stats_b, S32 wide_scale_a,
                                S32 wide_scale_b, Result<U8> rung_out, Result<U32> tiles_out,
                                Result<F32> worst, CertifyFineAttributes attributes) {
  Checks checks =
      check_certify_fine(sums, rung, tiles, scale_a, stats_a, scale_b, stats_b, wide_scale_a,
                         wide_scale_b, *rung_out, *tiles_out, *worst, attributes);
  Certify certify = certify_of(checks, sums, scale_a, stats_a, scale_b, stats_b, *rung_out,
                               *tiles_out, *worst, attributes);
  certify.rows.wide_scale = wide_scale_a.typed_data();
  certify.columns.wide_scale = wide_scale_b.typed_data();
  certify.all_k = attributes.all_k != 0;
  return enqueue(
      checks, [&](const Device& device) { return launch_certify_fine(certify, device, stream); });
}

ffi::Error residues_handler(cudaStream_t stream, F64 x, S32 scale, S32 count, U32 tiles,
                            Result<U8> out, LadderResiduesAttributes attributes) {
  Checks checks = check_ladder_residues(x, scale, count, tiles, *out, attributes);
  check_limits(checks, "x", attributes.layout);
  return enqueue(checks, [&](const Device& device) {
    return launch_flagged_residues(
        x.typed_data(), attributes.layout, moduli_of(*out), scale.typed_data(), count.typed_data(),
        flagged_tiles(tiles, attributes.rungs), static_cast<Side>(attributes.side),
        out->typed_data(), device, stream);
  });
}

ffi::Error combine_handler(cudaStream_t stream, U8 v, S32 scale_a, S32 scale_b, F64 a, F64 b,
                           S32 count, U8 rung, U32 tiles, ffi::RemainingArgs earlier, Result<F64> c,
                           LadderCombineAttributes attributes) {
  Checks checks =
      check_ladder_combine(v, scale_a, scale_b, a, b, count, rung, tiles, earlier, *c, attributes);
  const Combine product = combine_of(checks, v.untyped_data(), MmaOutput::kResidues, scale_a,
                                     scale_b, a, b, *c, attributes.product);
  return enqueue(checks, [&](const Device& device) {
    return launch_ladder_combine({product, count.typed_data(), rung.typed_data(),
                                  flagged_tiles(tiles, attributes.rungs), earlier.size() > 0},
                                 static_cast<int>(attributes.product.moduli), device, stream);
  });
}

ffi::Error sum_handler(cudaStream_t stream, F64 a, F64 b, S64 stats_a, S64 stats_b, U8 rung,
                       U32 tiles, F64 earlier, Result<F64> c, LadderSumAttributes attributes) {
  Checks checks = check_ladder_sum(a, b, stats_a, stats_b, rung, tiles, earlier, *c, attributes);
  const CombineLayouts layouts = attributes.layouts(*c);
  check_limits(checks, "a", layouts.a);
  check_limits(checks, "b", layouts.b);
  return enqueue(checks, [&](const Device& device) {
    return launch_ladder_sum(
        {a.typed_data(), b.typed_data(), layouts.a, layouts.b, stats_a.typed_data(),
         stats_b.typed_data(), rung.typed_data(), flagged_tiles(tiles, attributes.rungs),
         attributes.exact != 0, attributes.group, c->typed_data()},
        device, stream);
  });
}

XLA_FFI_DEFINE_HANDLER(kQuantizeHandler, quantize_handler, bind_ladder_quantize<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kPlanesHandler, planes_handler, bind_planes<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kMagnitudeHandler, magnitude_handler, bind_magnitude<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kCertifyHandler, certify_handler, bind_certify<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kCertifyFineHandler, certify_fine_handler, bind_certify_fine<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kResiduesHandler, residues_handler, bind_ladder_residues<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kMmaHandler, mma_handler, bind_ladder_mma<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kCombineHandler, combine_handler, bind_ladder_combine<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kSumHandler, sum_handler, bind_ladder_sum<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

LadderHandlers ladder_handlers() {
  return {kQuantizeHandler, kPlanesHandler, kMagnitudeHandler, kCertifyHandler, kCertifyFineHandler,
          kResiduesHandler, kMmaHandler,    kCombineHandler,   kSumHandler};
}

}  // namespace ozaki
