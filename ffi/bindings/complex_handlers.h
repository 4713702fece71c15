// The FFI targets of complex products, the same on every platform. Layouts count complex elements.
#pragma once

#include "bindings/handlers.h"

namespace ozaki {

constexpr char kComplexStatsTarget[] = "jax_ozaki.complex_stats.v1";
constexpr char kComplexQuantizeTarget[] = "jax_ozaki.complex_quantize.v1";
constexpr char kComplexResiduesTarget[] = "jax_ozaki.complex_residues.v1";
constexpr char kComplexGroupedMmaTarget[] = "jax_ozaki.complex_grouped_mma.v1";
constexpr char kComplexCombineTarget[] = "jax_ozaki.complex_combine.v1";

using C128 = ffi::Buffer<ffi::C128>;

// The parts of complex numbers, real and imaginary in turn.
inline const double* parts_of(const C128& x) {
  return reinterpret_cast<const double*>(x.typed_data());
}
inline double* parts_of(Result<C128>& x) { return reinterpret_cast<double*>(x->typed_data()); }

// ---- Signatures ---------------------------------------------------------------------------------

// (x) -> (scale, stats, scratch)
template <typename Context>
auto bind_complex_stats() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<C128>()
      .template Ret<S32>()
      .template Ret<S64>()
      .template Ret<U8>()
      .template Attrs<StatsAttributes>();
}

// (x) -> (residues, scale, stats, scratch)
template <typename Context>
auto bind_complex_quantize() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<C128>()
      .template Ret<U8>()
      .template Ret<S32>()
      .template Ret<S64>()
      .template Ret<U8>()
      .template Attrs<QuantizeAttributes>();
}

// (x, scale) -> residues
template <typename Context>
auto bind_complex_residues() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<C128>()
      .template Arg<S32>()
      .template Ret<U8>()
      .template Attrs<Layout>();
}

// (lhs, rhs) -> v
template <typename Context>
auto bind_complex_grouped_mma() {
  return ffi::Ffi::Bind().Ctx<Context>().template Arg<U8>().template Arg<U8>().template Ret<U8>();
}

// (v, scale_a, scale_b, a, b) -> c
template <typename Context>
auto bind_complex_combine() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<U8>()
      .template Arg<S32>()
      .template Arg<S32>()
      .template Arg<C128>()
      .template Arg<C128>()
      .template Ret<C128>()
      .template Attrs<CombineAttributes>();
}

inline void add_complex_handlers(nb::dict& capsules, const Handlers& handlers) {
  add_handler(capsules, kComplexStatsTarget, handlers.stats);
  add_handler(capsules, kComplexQuantizeTarget, handlers.quantize);
  add_handler(capsules, kComplexResiduesTarget, handlers.residues);
  add_handler(capsules, kComplexGroupedMmaTarget, handlers.grouped_mma);
  add_handler(capsules, kComplexCombineTarget, handlers.combine);
}

// ---- Arguments and their checks -----------------------------------------------------------------

// Residues and v are uint8 [batch, 2 moduli, ...]: those of the first root, then those of the
// other.
inline int complex_moduli_of(const U8& residues) {
  return static_cast<int>(Checks::dimension(residues.dimensions(), 1) / 2);
}

inline void check_complex_moduli(Checks& checks, int64_t moduli) {
  checks.require(kMinModuli <= moduli && moduli <= kMaxComplexModuli,
                 "the number of complex moduli is " + std::to_string(moduli) + ", allowed are " +
                     std::to_string(kMinModuli) + " to " + std::to_string(kMaxComplexModuli));
}

// `moduli` moduli have a scale for every row of k complex elements.
inline void check_complex_length(Checks& checks, int64_t moduli, int64_t k) {
  if (checks.ok()) {
    checks.require(admits(kComplexBounds[static_cast<int>(moduli)], 2 * k),
                   "k = " + std::to_string(k) + " is too long for " + std::to_string(moduli) +
                       " complex moduli");
  }
}

inline void check_complex_residue_shape(Checks& checks, const Layout& layout, const U8& residues) {
  const int moduli = complex_moduli_of(residues);
  checks.rank("residues", residues.dimensions(), 4);
  check_complex_moduli(checks, moduli);
  checks.shape("residues", residues.dimensions(),
               {layout.batch, 2 * moduli, layout.rows, padded_k(layout.k)});
}

// Complex rows have one scale each.
inline void check_never_fewer(Checks& checks, int64_t most_rounded) {
  checks.require(most_rounded == 0, "most_rounded is " + std::to_string(most_rounded) +
                                        ", in complex products it is 0");
}

inline Checks check_complex_stats(const C128& x, const StatsAttributes& attributes,
                                  const S32& scale, const S64& stats) {
  Checks checks(kComplexStatsTarget);
  checks.layout("x", attributes.layout, x.element_count());
  check_complex_moduli(checks, attributes.moduli);
  check_complex_length(checks, attributes.moduli, attributes.layout.k);
  check_never_fewer(checks, attributes.most_rounded);
  check_rows(checks, attributes.layout, scale, stats);
  return checks;
}

inline Checks check_complex_quantize(const C128& x, const QuantizeAttributes& attributes,
                                     const U8& residues, const S32& scale, const S64& stats) {
  const Layout& layout = attributes.layout;
  Checks checks(kComplexQuantizeTarget);
  checks.layout("x", layout, x.element_count());
  check_complex_residue_shape(checks, layout, residues);
  check_complex_length(checks, complex_moduli_of(residues), layout.k);
  check_never_fewer(checks, attributes.most_rounded);
  check_rows(checks, layout, scale, stats);
  return checks;
}

inline Checks check_complex_residues(const C128& x, const Layout& layout, const S32& scale,
                                     const U8& residues) {
  Checks checks(kComplexResiduesTarget);
  checks.layout("x", layout, x.element_count());
  checks.shape("scale", scale.dimensions(), {layout.batch, layout.rows});
  check_complex_residue_shape(checks, layout, residues);
  return checks;
}

// The products by each root are those of a batch twice as long.
inline MmaExtents complex_mma_extents(const U8& lhs, const U8& rhs) {
  MmaExtents extents = mma_extents(lhs, rhs);
  extents.batch *= 2;
  extents.moduli /= 2;
  return extents;
}

inline Checks check_complex_grouped_mma(const U8& lhs, const U8& rhs, const U8& v) {
  const MmaExtents extents = complex_mma_extents(lhs, rhs);
  const int64_t batch = extents.batch / 2, planes = 2 * extents.moduli;
  Checks checks(kComplexGroupedMmaTarget);
  checks.rank("lhs", lhs.dimensions(), 4);
  check_complex_moduli(checks, extents.moduli);
  checks.require(extents.kp % kVectorBytes == 0,
                 "lhs has rows of " + std::to_string(extents.kp) + " bytes, not a multiple of 16");
  checks.shape("lhs", lhs.dimensions(), {batch, planes, extents.m, extents.kp});
  checks.shape("rhs", rhs.dimensions(), {batch, planes, extents.n, extents.kp});
  checks.shape("v", v.dimensions(), {batch, planes, extents.m, padded(extents.n)});
  return checks;
}

// All of a combine stage but v.
inline Checks check_complex_combine(const char* target, const S32& scale_a, const S32& scale_b,
                                    const C128& a, const C128& b, const C128& c,
                                    const CombineAttributes& attributes) {
  const CombineLayouts layouts = combine_layouts(c, attributes);
  const int64_t batch = layouts.a.batch, m = layouts.a.rows, n = layouts.b.rows;
  Checks checks(target);
  checks.rank("c", c.dimensions(), 3);
  check_complex_moduli(checks, attributes.moduli);
  checks.shape("scale_a", scale_a.dimensions(), {batch, m});
  checks.shape("scale_b", scale_b.dimensions(), {batch, n});
  checks.layout("a", layouts.a, a.element_count());
  checks.layout("b", layouts.b, b.element_count());
  return checks;
}

inline Checks check_complex_combine(const U8& v, const S32& scale_a, const S32& scale_b,
                                    const C128& a, const C128& b, const C128& c,
                                    const CombineAttributes& attributes) {
  Checks checks =
      check_complex_combine(kComplexCombineTarget, scale_a, scale_b, a, b, c, attributes);
  const CombineLayouts layouts = combine_layouts(c, attributes);
  checks.shape("v", v.dimensions(),
               {layouts.a.batch, 2 * attributes.moduli, layouts.a.rows, padded(layouts.b.rows)});
  return checks;
}

}  // namespace ozaki
