// FFI handlers of the CUDA stages and the Python module _cuda that registers them.
//
// All are compatible with command buffers: a handler enqueues the same launches for the same
// shapes, allocates nothing and waits for nothing.
#include "bindings/cuda.h"

#include <nanobind/stl/string.h>

#include "bindings/complex_handlers.h"
#include "cuda/combine.h"
#include "cuda/combine_complex.h"
#include "cuda/grouped_mma.h"
#include "cuda/quantize.h"
#include "cuda/quantize_complex.h"
#include "cuda/statistics.h"
#include "cuda/strassen.h"

namespace ozaki {

struct StrassenAttributes {
  int64_t side;  // 0: lhs, 1: rhs
  Layout layout;
};

}  // namespace ozaki

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::StrassenAttributes, StructMember<int64_t>("side"),
                                      OZAKI_LAYOUT_MEMBERS);

namespace ozaki {
namespace {

MmaOutput kind_of(const V& v) {
  return is_words(v) ? MmaOutput::kPartialCrt : MmaOutput::kResidues;
}

ffi::Error stats_handler(cudaStream_t stream, F64 x, Result<S32> scale, Result<S64> stats,
                         Result<U8> scratch, StatsAttributes attributes) {
  const Layout& layout = attributes.layout;
  Checks checks = check_stats(x, attributes, *scale, *stats);
  check_limits(checks, "x", layout);
  check_scratch(checks, layout, *scratch);
  return enqueue(checks, [&](const Device& device) {
    return launch_statistics(
        x.typed_data(), layout,
        scale_bounds(attributes.moduli, attributes.fewer_moduli, attributes.most_rounded),
        {scale->typed_data(), stats->typed_data()}, scratch->typed_data(), device, stream);
  });
}

ffi::Error quantize_handler(cudaStream_t stream, F64 x, Result<U8> residues, Result<S32> scale,
                            Result<S64> stats, Result<U8> scratch, QuantizeAttributes attributes) {
  const Layout& layout = attributes.layout;
  Checks checks = check_quantize(x, attributes, *residues, *scale, *stats);
  check_limits(checks, "x", layout);
  check_scratch(checks, layout, *scratch);
  return enqueue(checks, [&](const Device& device) {
    const int moduli = moduli_of(*residues);
    return launch_quantize(x.typed_data(), layout, moduli,
                           scale_bounds(moduli, attributes.fewer_moduli, attributes.most_rounded),
                           {scale->typed_data(), stats->typed_data()}, residues->typed_data(),
                           nullptr, 1, scratch->typed_data(), device, stream);
  });
}

ffi::Error residues_handler(cudaStream_t stream, F64 x, S32 scale, Result<U8> residues,
                            Layout layout) {
  Checks checks = check_residues(x, layout, scale, *residues);
  check_limits(checks, "x", layout);
  return enqueue(checks, [&](const Device& device) {
    return launch_residues(x.typed_data(), layout, moduli_of(*residues), scale.typed_data(),
                           residues->typed_data(), device, stream);
  });
}

ffi::Error grouped_mma_handler(cudaStream_t stream, U8 lhs, U8 rhs, Result<V> v) {
  Checks checks = check_grouped_mma(lhs, rhs, *v, VTypes::kBytesAndWords);
  return enqueue_mma(checks, grouped_mma_of(lhs, rhs, v->untyped_data(), kind_of(*v)), stream);
}

ffi::Error combine_handler(cudaStream_t stream, V v, S32 scale_a, S32 scale_b, F64 a, F64 b,
                           Result<F64> c, CombineAttributes attributes) {
  Checks checks = check_combine(kCombineTarget, scale_a, scale_b, a, b, *c, attributes);
  const CombineLayouts layouts = combine_layouts(*c, attributes);
  check_v(checks, v, VTypes::kBytesAndWords, layouts.a.batch, attributes.moduli, layouts.a.rows,
          layouts.b.rows);
  const Combine combine =
      combine_of(checks, v.untyped_data(), kind_of(v), scale_a, scale_b, a, b, *c, attributes);
  return enqueue(checks, [&](const Device& device) {
    return launch_combine(combine, static_cast<int>(attributes.moduli), device, stream);
  });
}

// ---- Complex products ---------------------------------------------------------------------------

ffi::Error complex_stats_handler(cudaStream_t stream, C128 x, Result<S32> scale, Result<S64> stats,
                                 Result<U8> scratch, StatsAttributes attributes) {
  const Layout parts = layout_of_parts(attributes.layout);
  Checks checks = check_complex_stats(x, attributes, *scale, *stats);
  check_limits(checks, "x", parts);
  check_scratch(checks, parts, *scratch);
  return enqueue(checks, [&](const Device& device) {
    return launch_statistics(
        parts_of(x), parts, {kComplexBounds[static_cast<int>(attributes.moduli)]},
        {scale->typed_data(), stats->typed_data()}, scratch->typed_data(), device, stream);
  });
}

ffi::Error complex_quantize_handler(cudaStream_t stream, C128 x, Result<U8> residues,
                                    Result<S32> scale, Result<S64> stats, Result<U8> scratch,
                                    QuantizeAttributes attributes) {
  const Layout parts = layout_of_parts(attributes.layout);
  Checks checks = check_complex_quantize(x, attributes, *residues, *scale, *stats);
  check_limits(checks, "x", parts);
  check_scratch(checks, parts, *scratch);
  return enqueue(checks, [&](const Device& device) {
    return launch_quantize_complex(parts_of(x), parts, complex_moduli_of(*residues),
                                   {scale->typed_data(), stats->typed_data()},
                                   residues->typed_data(), scratch->typed_data(), device, stream);
  });
}

ffi::Error complex_residues_handler(cudaStream_t stream, C128 x, S32 scale, Result<U8> residues,
                                    Layout layout) {
  const Layout parts = layout_of_parts(layout);
  Checks checks = check_complex_residues(x, layout, scale, *residues);
  check_limits(checks, "x", parts);
  return enqueue(checks, [&](const Device& device) {
    return launch_residues_complex(parts_of(x), parts, complex_moduli_of(*residues),
                                   scale.typed_data(), residues->typed_data(), device, stream);
  });
}

ffi::Error complex_grouped_mma_handler(cudaStream_t stream, U8 lhs, U8 rhs, Result<U8> v) {
  const Checks checks = check_complex_grouped_mma(lhs, rhs, *v);
  const MmaExtents extents = complex_mma_extents(lhs, rhs);
  return enqueue_mma(
      checks,
      {lhs.typed_data(), rhs.typed_data(), v->untyped_data(), extents.batch, extents.moduli,
       extents.m, extents.n, extents.kp, MmaOutput::kResidues, ModulusSet::kComplex},
      stream);
}

ffi::Error complex_combine_handler(cudaStream_t stream, U8 v, S32 scale_a, S32 scale_b, C128 a,
                                   C128 b, Result<C128> c, CombineAttributes attributes) {
  Checks checks = check_complex_combine(v, scale_a, scale_b, a, b, *c, attributes);
  const Combine combine = combine_of(checks, v.untyped_data(), MmaOutput::kResidues, scale_a,
                                     scale_b, a, b, *c, attributes);
  return enqueue(checks, [&](const Device& device) {
    return launch_combine_complex(combine, static_cast<int>(attributes.moduli), device, stream);
  });
}

// ---- One level of Strassen-Winograd, which only this platform has -------------------------------

constexpr char kStrassenQuantizeTarget[] = "jax_ozaki.strassen_quantize.v1";
constexpr char kStrassenCombineTarget[] = "jax_ozaki.strassen_combine.v1";
constexpr char kComplexStrassenQuantizeTarget[] = "jax_ozaki.complex_strassen_quantize.v1";
constexpr char kComplexStrassenCombineTarget[] = "jax_ozaki.complex_strassen_combine.v1";

// The last argument of these stages, int32[1]: how many of the moduli are used. All, where it is not
// given.
const int32_t* optional_count(Checks& checks, ffi::RemainingArgs counts) {
  checks.require(counts.size() <= 1, "there is more than one count");
  if (!checks.ok() || counts.size() == 0) return nullptr;
  const auto count = counts.get<S32>(0);
  checks.require(count.has_value(), "count is not int32");
  if (!checks.ok()) return nullptr;
  checks.shape("count", count->dimensions(), {1});
  return count->typed_data();
}

// (x, scale, count?) -> residues uint8 [batch, 7, parts moduli, rows / 2, k / 2], both rounded up
// and k padded; `layout` counts elements.
ffi::Error enqueue_strassen_quantize(Checks checks, int parts, const double* x, const S32& scale,
                                     ffi::RemainingArgs counts, U8& residues,
                                     const StrassenAttributes& attributes, cudaStream_t stream) {
  const Layout& layout = attributes.layout;
  const int64_t planes = Checks::dimension(residues.dimensions(), 2);
  checks.require(attributes.side == 0 || attributes.side == 1, "side is ", attributes.side,
                 ", neither 0 (lhs) nor 1 (rhs)");
  checks.shape("scale", scale.dimensions(), {layout.batch, layout.rows});
  checks.rank("residues", residues.dimensions(), 5);
  checks.shape("residues", residues.dimensions(),
               {layout.batch, kStrassenProducts, planes / parts * parts, strassen_half(layout.rows),
                strassen_depth(layout.k)});
  const int32_t* const count = optional_count(checks, counts);
  const Layout of_parts = parts == 2 ? layout_of_parts(layout) : layout;
  check_limits(checks, "x", of_parts);
  return enqueue(checks, [&](const Device& device) {
    return launch_strassen_quantize(x, of_parts,
                                    attributes.side == 0 ? StrassenSide::kLhs : StrassenSide::kRhs,
                                    static_cast<int>(planes / parts), count, scale.typed_data(),
                                    residues.typed_data(), device, stream);
  });
}

ffi::Error strassen_quantize_handler(cudaStream_t stream, F64 x, S32 scale,
                                     ffi::RemainingArgs count, Result<U8> residues,
                                     StrassenAttributes attributes) {
  Checks checks(kStrassenQuantizeTarget);
  checks.layout("x", attributes.layout, x.element_count());
  return enqueue_strassen_quantize(checks, 1, x.typed_data(), scale, count, *residues, attributes,
                                   stream);
}

ffi::Error complex_strassen_quantize_handler(cudaStream_t stream, C128 x, S32 scale,
                                             ffi::RemainingArgs count, Result<U8> residues,
                                             StrassenAttributes attributes) {
  Checks checks(kComplexStrassenQuantizeTarget);
  checks.layout("x", attributes.layout, x.element_count());
  return enqueue_strassen_quantize(checks, 2, parts_of(x), scale, count, *residues, attributes,
                                   stream);
}

void check_strassen_v(Checks& checks, const V& v, int64_t planes, const CombineLayouts& layouts) {
  checks.require(v.element_type() == ffi::U8, "v is not uint8");
  checks.shape("v", v.dimensions(),
               {layouts.a.batch, kStrassenProducts, planes, strassen_half(layouts.a.rows),
                padded(strassen_half(layouts.b.rows))});
}

// As combine, from v of the seven products.
template <typename X>
ffi::Error enqueue_strassen_combine(const char* target, int parts, cudaStream_t stream, const V& v,
                                    const S32& scale_a, const S32& scale_b, const X& a, const X& b,
                                    ffi::RemainingArgs counts, X& c,
                                    const CombineAttributes& attributes) {
  Checks checks = check_combine(target, scale_a, scale_b, a, b, c, attributes);
  const CombineLayouts layouts = combine_layouts(c, attributes);
  check_strassen_v(checks, v, parts * attributes.moduli, layouts);
  const int32_t* const count = optional_count(checks, counts);
  const Combine combine = combine_of(checks, v.untyped_data(), MmaOutput::kResidues, scale_a,
                                     scale_b, a, b, c, attributes);
  return enqueue(checks, [&](const Device& device) {
    return launch_strassen_combine(combine, static_cast<int>(attributes.moduli), count, device,
                                   stream);
  });
}

ffi::Error strassen_combine_handler(cudaStream_t stream, V v, S32 scale_a, S32 scale_b, F64 a,
                                    F64 b, ffi::RemainingArgs count, Result<F64> c,
                                    CombineAttributes attributes) {
  return enqueue_strassen_combine(kStrassenCombineTarget, 1, stream, v, scale_a, scale_b, a, b,
                                  count, *c, attributes);
}

ffi::Error complex_strassen_combine_handler(cudaStream_t stream, V v, S32 scale_a, S32 scale_b,
                                            C128 a, C128 b, ffi::RemainingArgs count,
                                            Result<C128> c, CombineAttributes attributes) {
  return enqueue_strassen_combine(kComplexStrassenCombineTarget, 2, stream, v, scale_a, scale_b, a,
                                  b, count, *c, attributes);
}

XLA_FFI_DEFINE_HANDLER(kStats, stats_handler, bind_stats<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kQuantize, quantize_handler, bind_quantize<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kResidues, residues_handler, bind_residues<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kGroupedMma, grouped_mma_handler, bind_grouped_mma<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kCombine, combine_handler, bind_combine<Stream>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kComplexStats, complex_stats_handler, (bind_stats<Stream, C128>()),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kComplexQuantize, complex_quantize_handler, (bind_quantize<Stream, C128>()),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kComplexResidues, complex_residues_handler, (bind_residues<Stream, C128>()),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kComplexGroupedMma, complex_grouped_mma_handler,
                       (bind_grouped_mma<Stream, U8>()), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kComplexCombine, complex_combine_handler, (bind_combine<Stream, C128, U8>()),
                       {ffi::Traits::kCmdBufferCompatible});

// (x, scale, count?) -> residues
template <typename X>
auto bind_strassen_quantize() {
  return ffi::Ffi::Bind()
      .Ctx<Stream>()
      .template Arg<X>()
      .template Arg<S32>()
      .RemainingArgs()
      .template Ret<U8>()
      .template Attrs<StrassenAttributes>();
}

// (v, scale_a, scale_b, a, b, count?) -> c
template <typename X>
auto bind_strassen_combine() {
  return ffi::Ffi::Bind()
      .Ctx<Stream>()
      .template Arg<V>()
      .template Arg<S32>()
      .template Arg<S32>()
      .template Arg<X>()
      .template Arg<X>()
      .RemainingArgs()
      .template Ret<X>()
      .template Attrs<CombineAttributes>();
}

XLA_FFI_DEFINE_HANDLER(kStrassenQuantize, strassen_quantize_handler, bind_strassen_quantize<F64>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kStrassenCombine, strassen_combine_handler, bind_strassen_combine<F64>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kComplexStrassenQuantize, complex_strassen_quantize_handler,
                       bind_strassen_quantize<C128>(), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kComplexStrassenCombine, complex_strassen_combine_handler,
                       bind_strassen_combine<C128>(), {ffi::Traits::kCmdBufferCompatible});

nb::dict all_registrations() {
  nb::dict capsules = registrations({kStats, kQuantize, kResidues, kGroupedMma, kCombine});
  add_handler(capsules, kStrassenQuantizeTarget, kStrassenQuantize);
  add_handler(capsules, kStrassenCombineTarget, kStrassenCombine);
  add_handler(capsules, kComplexStrassenQuantizeTarget, kComplexStrassenQuantize);
  add_handler(capsules, kComplexStrassenCombineTarget, kComplexStrassenCombine);
  add_complex_handlers(capsules, {kComplexStats, kComplexQuantize, kComplexResidues,
                                  kComplexGroupedMma, kComplexCombine});
  add_ladder(capsules, ladder_handlers());
  add_symmetric(capsules);
  return capsules;
}

nb::dict build_info() {
  nb::dict info = common_build_info();
  info["cuda_archs"] = OZAKI_CUDA_ARCHS;
  info["cuda_mma"] = mma_choice().name;
  return info;
}

}  // namespace
}  // namespace ozaki

NB_MODULE(_cuda, module) {
  using namespace ozaki;
  module.def("registrations", &all_registrations, "Target name -> capsule of its FFI handler.");
  module.def("build_info", &build_info, "What this module was built from, and how.");
}
