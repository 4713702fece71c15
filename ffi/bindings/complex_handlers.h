// The FFI targets of complex products, the same on every platform. Layouts count complex elements.
#pragma once

#include "bindings/handlers.h"

namespace ozaki {

constexpr char kComplexStatsTarget[] = "jax_ozaki.complex_stats.v1";
constexpr char kComplexQuantizeTarget[] = "jax_ozaki.complex_quantize.v1";
constexpr char kComplexResiduesTarget[] = "jax_ozaki.complex_residues.v1";
constexpr char kComplexGroupedMmaTarget[] = "jax_ozaki.complex_grouped_mma.v1";
constexpr char kComplexCombineTarget[] = "jax_ozaki.complex_combine.v1";

// The parts of complex numbers, real and imaginary in turn.
inline const double* parts_of(const C128& x) {
  return reinterpret_cast<const double*>(x.typed_data());
}
inline double* parts_of(Result<C128>& x) { return reinterpret_cast<double*>(x->typed_data()); }

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

// `moduli` moduli have a scale for every row of k complex elements.
inline void check_complex_length(Checks& checks, int64_t moduli, int64_t k) {
  if (checks.ok()) {
    checks.require(admits(kComplexBounds[static_cast<int>(moduli)], 2 * k), "k = ", k,
                   " is too long for ", moduli, " complex moduli");
  }
}

inline void check_complex_residue_shape(Checks& checks, const Layout& layout, const U8& residues) {
  const int moduli = complex_moduli_of(residues);
  checks.rank("residues", residues.dimensions(), 4);
  checks.moduli(moduli, kMaxComplexModuli);
  checks.shape("residues", residues.dimensions(),
               {layout.batch, 2 * moduli, layout.rows, padded_k(layout.k)});
}

// Complex rows have one scale each.
inline void check_never_fewer(Checks& checks, int64_t most_rounded) {
  checks.require(most_rounded == 0, "most_rounded is ", most_rounded,
                 ", in complex products it is 0");
}

inline Checks check_complex_stats(const C128& x, const StatsAttributes& attributes,
                                  const S32& scale, const S64& stats) {
  Checks checks(kComplexStatsTarget);
  checks.layout("x", attributes.layout, x.element_count());
  checks.moduli(attributes.moduli, kMaxComplexModuli);
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
  check_factors(checks, lhs, rhs);
  checks.moduli(extents.moduli, kMaxComplexModuli);
  checks.shape("lhs", lhs.dimensions(), {batch, planes, extents.m, extents.kp});
  checks.shape("v", v.dimensions(), {batch, planes, extents.m, padded(extents.n)});
  return checks;
}

inline Checks check_complex_combine(const U8& v, const S32& scale_a, const S32& scale_b,
                                    const C128& a, const C128& b, const C128& c,
                                    const CombineAttributes& attributes) {
  Checks checks = check_combine(kComplexCombineTarget, scale_a, scale_b, a, b, c, attributes);
  const CombineLayouts layouts = combine_layouts(c, attributes);
  checks.shape("v", v.dimensions(),
               {layouts.a.batch, 2 * attributes.moduli, layouts.a.rows, padded(layouts.b.rows)});
  return checks;
}

}  // namespace ozaki
