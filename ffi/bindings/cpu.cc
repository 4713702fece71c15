// FFI handlers of the CPU stages and the Python module _cpu that registers them.
#include "bindings/cpu.h"

#include <nanobind/stl/string.h>

#include "bindings/complex_handlers.h"
#include "cpu/combine.h"
#include "cpu/combine_complex.h"
#include "cpu/grouped_mma.h"
#include "cpu/quantize.h"
#include "cpu/quantize_complex.h"

namespace ozaki {
namespace {

ffi::Error stats_handler(ffi::ThreadPool pool, F64 x, Result<S32> scale, Result<S64> stats,
                         Result<U8>, StatsAttributes attributes) {
  const Checks checks = check_stats(x, attributes, *scale, *stats);
  if (checks.ok())
    statistics({x.typed_data(), attributes.layout},
               scale_bounds(attributes.moduli, attributes.fewer_moduli, attributes.most_rounded),
               scale->typed_data(), stats->typed_data(), scheduler(pool));
  return checks.error();
}

ffi::Error quantize_handler(ffi::ThreadPool pool, F64 x, Result<U8> out, Result<S32> scale,
                            Result<S64> stats, Result<U8>, QuantizeAttributes attributes) {
  const Checks checks = check_quantize(x, attributes, *out, *scale, *stats);
  if (checks.ok()) {
    const int moduli = moduli_of(*out);
    quantize({x.typed_data(), attributes.layout}, moduli,
             scale_bounds(moduli, attributes.fewer_moduli, attributes.most_rounded),
             out->typed_data(), scale->typed_data(), stats->typed_data(), scheduler(pool));
  }
  return checks.error();
}

ffi::Error residues_handler(ffi::ThreadPool pool, F64 x, S32 scale, Result<U8> out, Layout layout) {
  const Checks checks = check_residues(x, layout, scale, *out);
  if (checks.ok())
    residues({x.typed_data(), layout}, moduli_of(*out), scale.typed_data(), out->typed_data(),
             scheduler(pool));
  return checks.error();
}

ffi::Error grouped_mma_handler(ffi::ThreadPool pool, U8 lhs, U8 rhs, Result<V> v) {
  Checks checks = check_grouped_mma(lhs, rhs, *v, VTypes::kBytes);
  if (checks.ok()) {
    const MmaExtents extents = mma_extents(lhs, rhs);
    const std::string problem = grouped_mma(
        lhs.typed_data(), rhs.typed_data(), v->typed_data<uint8_t>(),
        {extents.batch, extents.moduli, extents.m, extents.n, extents.kp}, scheduler(pool));
    checks.require(problem.empty(), problem);
  }
  return checks.error();
}

ffi::Error combine_handler(ffi::ThreadPool pool, V v, S32 scale_a, S32 scale_b, F64 a, F64 b,
                           Result<F64> c, CombineAttributes attributes) {
  Checks checks = check_combine(kCombineTarget, scale_a, scale_b, a, b, *c, attributes);
  const CombineLayouts layouts = combine_layouts(*c, attributes);
  check_v(checks, v, VTypes::kBytes, layouts.a.batch, attributes.moduli, layouts.a.rows,
          layouts.b.rows);
  if (checks.ok())
    combine(v.typed_data<uint8_t>(), static_cast<int>(attributes.moduli), scale_a.typed_data(),
            scale_b.typed_data(), {a.typed_data(), layouts.a}, {b.typed_data(), layouts.b},
            c->typed_data(), scheduler(pool));
  return checks.error();
}

// ---- Complex products ---------------------------------------------------------------------------

Operand operand_of(const C128& x, const Layout& layout) {
  return {parts_of(x), layout_of_parts(layout)};
}

ffi::Error complex_stats_handler(ffi::ThreadPool pool, C128 x, Result<S32> scale, Result<S64> stats,
                                 Result<U8>, StatsAttributes attributes) {
  const Checks checks = check_complex_stats(x, attributes, *scale, *stats);
  if (checks.ok())
    statistics(operand_of(x, attributes.layout),
               {kComplexBounds[static_cast<int>(attributes.moduli)]}, scale->typed_data(),
               stats->typed_data(), scheduler(pool));
  return checks.error();
}

ffi::Error complex_quantize_handler(ffi::ThreadPool pool, C128 x, Result<U8> out, Result<S32> scale,
                                    Result<S64> stats, Result<U8>, QuantizeAttributes attributes) {
  const Checks checks = check_complex_quantize(x, attributes, *out, *scale, *stats);
  if (checks.ok())
    quantize_complex(operand_of(x, attributes.layout), complex_moduli_of(*out), out->typed_data(),
                     scale->typed_data(), stats->typed_data(), scheduler(pool));
  return checks.error();
}

ffi::Error complex_residues_handler(ffi::ThreadPool pool, C128 x, S32 scale, Result<U8> out,
                                    Layout layout) {
  const Checks checks = check_complex_residues(x, layout, scale, *out);
  if (checks.ok())
    residues_complex(operand_of(x, layout), complex_moduli_of(*out), scale.typed_data(),
                     out->typed_data(), scheduler(pool));
  return checks.error();
}

ffi::Error complex_grouped_mma_handler(ffi::ThreadPool pool, U8 lhs, U8 rhs, Result<U8> v) {
  Checks checks = check_complex_grouped_mma(lhs, rhs, *v);
  if (checks.ok()) {
    const MmaExtents extents = complex_mma_extents(lhs, rhs);
    const std::string problem = grouped_mma(
        lhs.typed_data(), rhs.typed_data(), v->typed_data(),
        {extents.batch, extents.moduli, extents.m, extents.n, extents.kp, ModulusSet::kComplex},
        scheduler(pool));
    checks.require(problem.empty(), problem);
  }
  return checks.error();
}

ffi::Error complex_combine_handler(ffi::ThreadPool pool, U8 v, S32 scale_a, S32 scale_b, C128 a,
                                   C128 b, Result<C128> c, CombineAttributes attributes) {
  const Checks checks = check_complex_combine(v, scale_a, scale_b, a, b, *c, attributes);
  const CombineLayouts layouts = combine_layouts(*c, attributes);
  if (checks.ok())
    combine_complex(v.typed_data(), static_cast<int>(attributes.moduli), scale_a.typed_data(),
                    scale_b.typed_data(), operand_of(a, layouts.a), operand_of(b, layouts.b),
                    parts_of(c), scheduler(pool));
  return checks.error();
}

XLA_FFI_DEFINE_HANDLER(kStats, stats_handler, bind_stats<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kQuantize, quantize_handler, bind_quantize<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kResidues, residues_handler, bind_residues<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kGroupedMma, grouped_mma_handler, bind_grouped_mma<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(kCombine, combine_handler, bind_combine<ffi::ThreadPool>());

XLA_FFI_DEFINE_HANDLER(kComplexStats, complex_stats_handler, (bind_stats<ffi::ThreadPool, C128>()));
XLA_FFI_DEFINE_HANDLER(kComplexQuantize, complex_quantize_handler,
                       (bind_quantize<ffi::ThreadPool, C128>()));
XLA_FFI_DEFINE_HANDLER(kComplexResidues, complex_residues_handler,
                       (bind_residues<ffi::ThreadPool, C128>()));
XLA_FFI_DEFINE_HANDLER(kComplexGroupedMma, complex_grouped_mma_handler,
                       (bind_grouped_mma<ffi::ThreadPool, U8>()));
XLA_FFI_DEFINE_HANDLER(kComplexCombine, complex_combine_handler,
                       (bind_combine<ffi::ThreadPool, C128, U8>()));

nb::dict all_registrations() {
  nb::dict capsules = registrations({kStats, kQuantize, kResidues, kGroupedMma, kCombine});
  add_complex_handlers(capsules, {kComplexStats, kComplexQuantize, kComplexResidues,
                                  kComplexGroupedMma, kComplexCombine});
  add_ladder(capsules, ladder_handlers());
  return capsules;
}

nb::dict build_info() {
  nb::dict info = common_build_info();
  info["cpu_isa"] = mma_isa().name;
  return info;
}

}  // namespace
}  // namespace ozaki

NB_MODULE(_cpu, module) {
  using namespace ozaki;
  module.def("registrations", &all_registrations, "Target name -> capsule of its FFI handler.");
  module.def("build_info", &build_info, "What this module was built from, and how.");
}
