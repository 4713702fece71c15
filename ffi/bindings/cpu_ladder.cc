// FFI handlers of the CPU stages of certified contracts.
#include "bindings/cpu.h"
#include "cpu/certify.h"
#include "cpu/grouped_mma.h"
#include "cpu/ladder_sum.h"
#include "cpu/planes.h"
#include "cpu/quantize.h"

namespace ozaki {
namespace {

// The rows of one operand that have a flagged tile, once `tiles` has been checked.
FlaggedSide flagged_side(const U32& tiles, int64_t side, int64_t rungs, const Layout& layout) {
  const bool lhs = side == 0;
  const int64_t others = Checks::dimension(tiles.dimensions(), lhs ? 2 : 1) * kTile;
  return {{tiles.typed_data(), lhs ? layout.rows : others, lhs ? others : layout.rows, rungs},
          static_cast<Side>(side)};
}

// The moduli multiplied: `count` is computed on the device.
int modulus_count(Checks& checks, const S32& count, int64_t moduli) {
  if (!checks.ok()) return kMinModuli;
  const int32_t value = count.typed_data()[0];
  checks.require(kMinModuli <= value && value <= moduli, "count is ", value, ", allowed are 2 to ",
                 moduli);
  return value;
}

ffi::Error quantize_handler(ffi::ThreadPool pool, F64 x, Result<U8> out, Result<S32> scale,
                            Result<S64> stats, Result<U8> plane, Result<U8>,
                            LadderQuantizeAttributes attributes) {
  const Checks checks = check_ladder_quantize(x, attributes, *out, *scale, *stats, *plane);
  if (checks.ok()) {
    const Operand operand = {x.typed_data(), attributes.layout};
    const int moduli = moduli_of(*out);
    quantize(operand, moduli,
             scale_bounds(moduli, attributes.fewer_moduli, attributes.most_rounded),
             out->typed_data(), scale->typed_data(), stats->typed_data(), scheduler(pool));
    planes(operand, stats->typed_data(), kCoarsePlanes, {operand.layout.k, attributes.step},
           FlaggedSide{}, plane->typed_data(), scheduler(pool));
  }
  return checks.error();
}

ffi::Error planes_handler(ffi::ThreadPool pool, F64 x, S64 stats, U32 tiles, Result<U8> out,
                          PlanesAttributes attributes) {
  const Checks checks = check_planes(x, stats, tiles, *out, attributes);
  const Layout& layout = attributes.layout;
  if (checks.ok())
    planes({x.typed_data(), layout}, stats.typed_data(), planes_of(*out),
           {layout.k, attributes.step},
           flagged_side(tiles, attributes.side, attributes.rungs, layout), out->typed_data(),
           scheduler(pool));
  return checks.error();
}

MmaSizes mma_sizes(const U8& lhs, const U8& rhs) {
  const MmaExtents extents = mma_extents(lhs, rhs);
  return {extents.batch, extents.moduli, extents.m, extents.n, extents.kp};
}

ffi::Error magnitude_handler(ffi::ThreadPool pool, U8 lhs, U8 rhs, U32 tiles, Result<S32> sums,
                             Result<U8>, MmaAttributes attributes) {
  Checks checks = check_magnitude(lhs, rhs, tiles, *sums, attributes);
  if (checks.ok()) {
    const MmaSizes sizes = mma_sizes(lhs, rhs);
    const std::string problem =
        magnitude(lhs.typed_data(), rhs.typed_data(), sums->typed_data(), sizes,
                  {tiles.typed_data(), sizes.m, sizes.n, attributes.rungs}, scheduler(pool));
    checks.require(problem.empty(), problem);
  }
  return checks.error();
}

ffi::Error certify_handler(ffi::ThreadPool pool, S32 sums, S32 scale_a, S64 stats_a, S32 scale_b,
                           S64 stats_b, Result<U8> rung, Result<U32> tiles, Result<F32> worst,
                           Result<S32> count, Result<S32> wide_count, Result<S32> wide_scale_a,
                           Result<S32> wide_scale_b, Result<U8>, CertifyAttributes attributes) {
  const Checks checks =
      check_certify(sums, scale_a, stats_a, scale_b, stats_b, *rung, *tiles, *worst, *count,
                    *wide_count, *wide_scale_a, *wide_scale_b, attributes);
  if (checks.ok()) {
    const auto [batch, m, n] = certify_extents(sums, attributes.n);
    const CertifySizes sizes = {batch, m, n, attributes.k};
    const CertifiedRows rows = {scale_a.typed_data(), stats_a.typed_data()};
    const CertifiedRows columns = {scale_b.typed_data(), stats_b.typed_data()};
    count_moduli(sizes, attributes.rung_moduli(), rows, columns,
                 {count->typed_data(), wide_count->typed_data(), wide_scale_a->typed_data(),
                  wide_scale_b->typed_data()});
    certify(sums.typed_data(), sizes, attributes.tau_half, rows, columns,
            {rung->typed_data(), tiles->typed_data(), worst->typed_data()}, scheduler(pool));
  }
  return checks.error();
}

ffi::Error certify_fine_handler(ffi::ThreadPool pool, S32 sums, U8 rung, U32 tiles, S32 scale_a,
                                S64 stats_a, S32 scale_b, S64 stats_b, S32 wide_scale_a,
                                S32 wide_scale_b, Result<U8> rung_out, Result<U32> tiles_out,
                                Result<F32> worst, CertifyFineAttributes attributes) {
  const Checks checks =
      check_certify_fine(sums, rung, tiles, scale_a, stats_a, scale_b, stats_b, wide_scale_a,
                         wide_scale_b, *rung_out, *tiles_out, *worst, attributes);
  if (checks.ok()) {
    const auto [batch, m, n] = certify_extents(sums, attributes.n);
    certify_fine(
        sums.typed_data(), {batch, m, n, attributes.k}, attributes.all_k != 0, attributes.tau_half,
        {scale_a.typed_data(), stats_a.typed_data()}, {scale_b.typed_data(), stats_b.typed_data()},
        wide_scale_a.typed_data(), wide_scale_b.typed_data(),
        {rung_out->typed_data(), tiles_out->typed_data(), worst->typed_data()}, scheduler(pool));
  }
  return checks.error();
}

ffi::Error residues_handler(ffi::ThreadPool pool, F64 x, S32 scale, S32 count, U32 tiles,
                            Result<U8> out, LadderResiduesAttributes attributes) {
  Checks checks = check_ladder_residues(x, scale, count, tiles, *out, attributes);
  const int moduli = modulus_count(checks, count, moduli_of(*out));
  if (checks.ok())
    residues({x.typed_data(), attributes.layout}, moduli_of(*out), moduli, scale.typed_data(),
             flagged_side(tiles, attributes.side, attributes.rungs, attributes.layout),
             out->typed_data(), scheduler(pool));
  return checks.error();
}

ffi::Error mma_handler(ffi::ThreadPool pool, U8 lhs, U8 rhs, S32 count, U32 tiles, Result<U8> v,
                       Result<U8>, MmaAttributes attributes) {
  Checks checks = check_ladder_mma(lhs, rhs, count, tiles, *v, attributes);
  const int moduli = modulus_count(checks, count, moduli_of(lhs));
  if (checks.ok()) {
    const MmaSizes sizes = mma_sizes(lhs, rhs);
    const std::string problem =
        grouped_mma(lhs.typed_data(), rhs.typed_data(), v->typed_data(), sizes, moduli,
                    {tiles.typed_data(), sizes.m, sizes.n, attributes.rungs}, scheduler(pool));
    checks.require(problem.empty(), problem);
  }
  return checks.error();
}

Selection selection(const U8& rung, const U32& tiles, const CombineLayouts& layouts,
                    int64_t rungs) {
  return {rung.typed_data(), {tiles.typed_data(), layouts.a.rows, layouts.b.rows, rungs}};
}

ffi::Error combine_handler(ffi::ThreadPool pool, U8 v, S32 scale_a, S32 scale_b, F64 a, F64 b,
                           S32 count, U8 rung, U32 tiles, ffi::RemainingArgs earlier, Result<F64> c,
                           LadderCombineAttributes attributes) {
  Checks checks =
      check_ladder_combine(v, scale_a, scale_b, a, b, count, rung, tiles, earlier, *c, attributes);
  const int planes = static_cast<int>(attributes.product.moduli);
  const int moduli = modulus_count(checks, count, planes);
  const CombineLayouts layouts = combine_layouts(*c, attributes.product);
  if (checks.ok())
    combine(v.typed_data(), planes, moduli, scale_a.typed_data(), scale_b.typed_data(),
            {a.typed_data(), layouts.a}, {b.typed_data(), layouts.b},
            selection(rung, tiles, layouts, attributes.rungs), c->typed_data(), scheduler(pool));
  return checks.error();
}

ffi::Error sum_handler(ffi::ThreadPool pool, F64 a, F64 b, S64 stats_a, S64 stats_b, U8 rung,
                       U32 tiles, F64 earlier, Result<F64> c, LadderSumAttributes attributes) {
  const Checks checks =
      check_ladder_sum(a, b, stats_a, stats_b, rung, tiles, earlier, *c, attributes);
  const CombineLayouts layouts = attributes.layouts(*c);
  if (checks.ok())
    ladder_sum({a.typed_data(), layouts.a}, {b.typed_data(), layouts.b}, stats_a.typed_data(),
               stats_b.typed_data(), selection(rung, tiles, layouts, attributes.rungs),
               attributes.exact != 0, attributes.group, c->typed_data(), scheduler(pool));
  return checks.error();
}

XLA_FFI_DEFINE_HANDLER(kQuantizeHandler, quantize_handler, bind_ladder_quantize<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kPlanesHandler, planes_handler, bind_planes<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kMagnitudeHandler, magnitude_handler, bind_magnitude<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kCertifyHandler, certify_handler, bind_certify<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kCertifyFineHandler, certify_fine_handler,
                       bind_certify_fine<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kResiduesHandler, residues_handler, bind_ladder_residues<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kMmaHandler, mma_handler, bind_ladder_mma<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kCombineHandler, combine_handler, bind_ladder_combine<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kSumHandler, sum_handler, bind_ladder_sum<ffi::ThreadPool>());

}  // namespace

LadderHandlers ladder_handlers() {
  return {kQuantizeHandler, kPlanesHandler, kMagnitudeHandler, kCertifyHandler, kCertifyFineHandler,
          kResiduesHandler, kMmaHandler,    kCombineHandler,   kSumHandler};
}

}  // namespace ozaki
