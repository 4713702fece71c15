// The FFI targets of certified contracts, the stages after quantize: names, signatures and checks.
#pragma once

#include "bindings/handlers.h"
#include "common/certificate.h"
#include "common/modulus_count.h"

namespace ozaki {

constexpr char kLadderQuantizeTarget[] = "jax_ozaki.ladder_quantize.v1";
constexpr char kPlanesTarget[] = "jax_ozaki.planes.v1";
constexpr char kMagnitudeTarget[] = "jax_ozaki.magnitude.v1";
constexpr char kCertifyTarget[] = "jax_ozaki.certify.v1";
constexpr char kCertifyFineTarget[] = "jax_ozaki.certify_fine.v1";
constexpr char kLadderResiduesTarget[] = "jax_ozaki.ladder_residues.v1";
constexpr char kLadderMmaTarget[] = "jax_ozaki.ladder_mma.v1";
constexpr char kLadderCombineTarget[] = "jax_ozaki.ladder_combine.v1";
constexpr char kLadderSumTarget[] = "jax_ozaki.ladder_sum.v1";

using F32 = ffi::Buffer<ffi::F32>;
using U32 = ffi::Buffer<ffi::U32>;

// ---- Attributes, int64 but for tau_half ---------------------------------------------------------

// `rungs`: a stage works on the tiles that hold an output of one of these rungs, bit r for rung r.
// Everything of its results that belongs to other tiles is left as it is. `tiles` also say what may
// be skipped of k (common/occupancy.h), which is the k of the operands that come with them.

// Rows without a flagged tile are left alone: those of the lhs belong to axis 1 of the tiles, those
// of the rhs to axis 2.
struct LadderResiduesAttributes {
  int64_t side, rungs;
  Layout layout;
};

// As quantize, and the coarse plane of every step-th block of k.
struct LadderQuantizeAttributes {
  int64_t fewer_moduli, most_rounded, step;
  Layout layout;
};

struct PlanesAttributes {
  int64_t side, rungs, step;
  Layout layout;
};

struct MmaAttributes {
  int64_t rungs;
};

// tau_half: (c - 1) (1 - 2^-16) / 2, rounded down. fewer_moduli as in quantize, wide_moduli those of
// the third rung.
struct CertifyAttributes {
  int64_t n, k;
  int64_t moduli, fewer_moduli, wide_moduli;
  float tau_half;

  RungModuli rung_moduli() const {
    return {static_cast<int>(moduli), static_cast<int>(fewer_moduli),
            static_cast<int>(wide_moduli)};
  }
};

struct CertifyFineAttributes {
  int64_t n, k;
  int64_t all_k;  // the planes hold every k: a mask product of 0 means that S = 0
  float tau_half;
};

// product.moduli: the planes of v, at least count.
struct LadderCombineAttributes {
  int64_t rungs;
  CombineAttributes product;
};

struct LadderSumAttributes {
  int64_t rungs;
  int64_t exact;  // correctly rounded
  int64_t group;  // chains in a group of common/chains.h; 0 where integers are added up
  int64_t k;
  int64_t a_stride_b, a_stride_r, a_stride_k;
  int64_t b_stride_b, b_stride_r, b_stride_k;

  CombineLayouts layouts(const F64& c) const {
    return combine_layouts(
        c, {0, k, a_stride_b, a_stride_r, a_stride_k, b_stride_b, b_stride_r, b_stride_k});
  }
};

}  // namespace ozaki

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::LadderResiduesAttributes,
                                      StructMember<int64_t>("side"), StructMember<int64_t>("rungs"),
                                      OZAKI_LAYOUT_MEMBERS);
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::LadderQuantizeAttributes,
                                      StructMember<int64_t>("fewer_moduli"),
                                      StructMember<int64_t>("most_rounded"),
                                      StructMember<int64_t>("step"), OZAKI_LAYOUT_MEMBERS);
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::PlanesAttributes, StructMember<int64_t>("side"),
                                      StructMember<int64_t>("rungs"), StructMember<int64_t>("step"),
                                      OZAKI_LAYOUT_MEMBERS);
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::MmaAttributes, StructMember<int64_t>("rungs"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::CertifyAttributes, StructMember<int64_t>("n"),
                                      StructMember<int64_t>("k"), StructMember<int64_t>("moduli"),
                                      StructMember<int64_t>("fewer_moduli"),
                                      StructMember<int64_t>("wide_moduli"),
                                      StructMember<float>("tau_half"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::CertifyFineAttributes, StructMember<int64_t>("n"),
                                      StructMember<int64_t>("k"), StructMember<int64_t>("all_k"),
                                      StructMember<float>("tau_half"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::LadderCombineAttributes,
                                      StructMember<int64_t>("rungs"),
                                      StructMember<int64_t>("moduli"), StructMember<int64_t>("k"),
                                      OZAKI_STRIDE_MEMBERS);
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::LadderSumAttributes, StructMember<int64_t>("rungs"),
                                      StructMember<int64_t>("exact"),
                                      StructMember<int64_t>("group"), StructMember<int64_t>("k"),
                                      OZAKI_STRIDE_MEMBERS);

namespace ozaki {

// ---- Signatures ---------------------------------------------------------------------------------

// (x) -> (residues, scale, stats, coarse plane, scratch)
template <typename Context>
auto bind_ladder_quantize() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<F64>()
      .template Ret<U8>()
      .template Ret<S32>()
      .template Ret<S64>()
      .template Ret<U8>()
      .template Ret<U8>()
      .template Attrs<LadderQuantizeAttributes>();
}

// (x, stats, tiles) -> planes
template <typename Context>
auto bind_planes() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<F64>()
      .template Arg<S64>()
      .template Arg<U32>()
      .template Ret<U8>()
      .template Attrs<PlanesAttributes>();
}

// (lhs, rhs, tiles) -> (sums, scratch)
template <typename Context>
auto bind_magnitude() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<U8>()
      .template Arg<U8>()
      .template Arg<U32>()
      .template Ret<S32>()
      .template Ret<U8>()
      .template Attrs<MmaAttributes>();
}

// (sums, scale_a, stats_a, scale_b, stats_b)
// -> (rung, tiles, worst, count, wide_count, wide_scale_a, wide_scale_b, scratch)
template <typename Context>
auto bind_certify() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<S32>()
      .template Arg<S32>()
      .template Arg<S64>()
      .template Arg<S32>()
      .template Arg<S64>()
      .template Ret<U8>()
      .template Ret<U32>()
      .template Ret<F32>()
      .template Ret<S32>()
      .template Ret<S32>()
      .template Ret<S32>()
      .template Ret<S32>()
      .template Ret<U8>()
      .template Attrs<CertifyAttributes>();
}

// (sums, rung, tiles, scale_a, stats_a, scale_b, stats_b, wide_scale_a, wide_scale_b)
// -> (rung, tiles, worst), the first two in the buffers of rung and tiles
template <typename Context>
auto bind_certify_fine() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<S32>()
      .template Arg<U8>()
      .template Arg<U32>()
      .template Arg<S32>()
      .template Arg<S64>()
      .template Arg<S32>()
      .template Arg<S64>()
      .template Arg<S32>()
      .template Arg<S32>()
      .template Ret<U8>()
      .template Ret<U32>()
      .template Ret<F32>()
      .template Attrs<CertifyFineAttributes>();
}

// (x, scale, count, tiles) -> residues
template <typename Context>
auto bind_ladder_residues() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<F64>()
      .template Arg<S32>()
      .template Arg<S32>()
      .template Arg<U32>()
      .template Ret<U8>()
      .template Attrs<LadderResiduesAttributes>();
}

// (lhs, rhs, count, tiles) -> (v, scratch)
template <typename Context>
auto bind_ladder_mma() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<U8>()
      .template Arg<U8>()
      .template Arg<S32>()
      .template Arg<U32>()
      .template Ret<U8>()
      .template Ret<U8>()
      .template Attrs<MmaAttributes>();
}

// (v, scale_a, scale_b, a, b, count, rung, tiles[, c]) -> c
template <typename Context>
auto bind_ladder_combine() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<U8>()
      .template Arg<S32>()
      .template Arg<S32>()
      .template Arg<F64>()
      .template Arg<F64>()
      .template Arg<S32>()
      .template Arg<U8>()
      .template Arg<U32>()
      .RemainingArgs()
      .template Ret<F64>()
      .template Attrs<LadderCombineAttributes>();
}

// (a, b, stats_a, stats_b, rung, tiles, c) -> c
template <typename Context>
auto bind_ladder_sum() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<F64>()
      .template Arg<F64>()
      .template Arg<S64>()
      .template Arg<S64>()
      .template Arg<U8>()
      .template Arg<U32>()
      .template Arg<F64>()
      .template Ret<F64>()
      .template Attrs<LadderSumAttributes>();
}

struct LadderHandlers {
  XLA_FFI_Handler *quantize, *planes, *magnitude, *certify, *certify_fine, *residues, *mma,
      *combine, *sum;
};

inline void add_ladder(nb::dict& capsules, const LadderHandlers& handlers) {
  add_handler(capsules, kLadderQuantizeTarget, handlers.quantize);
  add_handler(capsules, kPlanesTarget, handlers.planes);
  add_handler(capsules, kMagnitudeTarget, handlers.magnitude);
  add_handler(capsules, kCertifyTarget, handlers.certify);
  add_handler(capsules, kCertifyFineTarget, handlers.certify_fine);
  add_handler(capsules, kLadderResiduesTarget, handlers.residues);
  add_handler(capsules, kLadderMmaTarget, handlers.mma);
  add_handler(capsules, kLadderCombineTarget, handlers.combine);
  add_handler(capsules, kLadderSumTarget, handlers.sum);
}

// ---- Arguments and their checks -----------------------------------------------------------------

inline void check_tiles(Checks& checks, const U32& tiles, int64_t batch, int64_t m, int64_t n) {
  checks.shape("tiles", tiles.dimensions(), {batch, tiles_of(m), tiles_of(n)});
}

// A set of rungs: the lowest byte of a tile's word.
inline void check_rungs(Checks& checks, int64_t rungs) {
  checks.require(0 < rungs && rungs < 256, "rungs is ", rungs);
}

// The tiles of one side: the other side's rows are unknown here.
inline void check_side(Checks& checks, int64_t side, const U32& tiles, const Layout& layout) {
  checks.require(side == 0 || side == 1, "side is ", side, ", allowed are 0 (lhs) and 1 (rhs)");
  checks.rank("tiles", tiles.dimensions(), 3);
  const int64_t other = Checks::dimension(tiles.dimensions(), side == 0 ? 2 : 1);
  const int64_t own = tiles_of(layout.rows);
  checks.shape("tiles", tiles.dimensions(),
               {layout.batch, side == 0 ? own : other, side == 0 ? other : own});
}

inline void check_count(Checks& checks, const S32& count) {
  checks.shape("count", count.dimensions(), {1});
}

// The planes of one operand, 1 or 4.
inline int planes_of(const U8& planes) {
  return static_cast<int>(Checks::dimension(planes.dimensions(), 1));
}

inline void check_plane_count(Checks& checks, int64_t planes) {
  checks.require(planes == kCoarsePlanes || planes == kFinePlanes, "there are ", planes,
                 " planes, allowed are 1 and 4");
}

inline void check_plane_shape(Checks& checks, const U8& planes, const Layout& layout,
                              int64_t step) {
  checks.require(1 <= step && step <= INT32_MAX, "step is ", step);
  if (checks.ok())
    checks.shape("planes", planes.dimensions(),
                 {layout.batch, planes_of(planes), layout.rows,
                  padded_k(PlaneSubset{layout.k, step}.kept())});
}

inline Checks check_ladder_quantize(const F64& x, const LadderQuantizeAttributes& attributes,
                                    const U8& residues, const S32& scale, const S64& stats,
                                    const U8& plane) {
  const QuantizeAttributes of_quantize = {attributes.fewer_moduli, attributes.most_rounded,
                                          attributes.layout};
  Checks checks = check_quantize(x, of_quantize, residues, scale, stats, kLadderQuantizeTarget);
  checks.require(planes_of(plane) == kCoarsePlanes, "there is more than one coarse plane");
  check_plane_shape(checks, plane, attributes.layout, attributes.step);
  if (!checks.ok()) return checks;
  // Shorter planes end in the middle of a line, where the last elements also write what follows.
  const PlaneSubset subset = {attributes.layout.k, attributes.step};
  checks.require(subset.all() || subset.kept() >= kMinLines * kLineBytes,
                 "a part of k is too short for a plane: step is ", attributes.step);
  return checks;
}

inline Checks check_planes(const F64& x, const S64& stats, const U32& tiles, const U8& planes,
                           const PlanesAttributes& attributes) {
  const Layout& layout = attributes.layout;
  Checks checks(kPlanesTarget);
  checks.layout("x", layout, x.element_count());
  checks.shape("stats", stats.dimensions(), {layout.batch, layout.rows, kStatsFields});
  check_side(checks, attributes.side, tiles, layout);
  check_rungs(checks, attributes.rungs);
  check_plane_count(checks, planes_of(planes));
  check_plane_shape(checks, planes, layout, attributes.step);
  return checks;
}

inline Checks check_magnitude(const U8& lhs, const U8& rhs, const U32& tiles, const S32& sums,
                              const MmaAttributes& attributes) {
  const MmaExtents extents = mma_extents(lhs, rhs);
  Checks checks(kMagnitudeTarget);
  check_factors(checks, lhs, rhs);
  check_plane_count(checks, extents.moduli);
  const int64_t longest = extents.moduli == kCoarsePlanes ? kMaxCoarseLength : kMaxFineLength;
  checks.require(extents.kp <= longest, "lhs has rows of ", extents.kp,
                 " bytes, which 32 bits cannot sum");
  check_tiles(checks, tiles, extents.batch, extents.m, extents.n);
  check_rungs(checks, attributes.rungs);
  checks.shape("sums", sums.dimensions(),
               {extents.batch, extents.moduli, extents.m, padded(extents.n)});
  return checks;
}

struct CertifyExtents {
  int64_t batch, m, n;
};

inline CertifyExtents certify_extents(const S32& sums, int64_t n) {
  return {Checks::dimension(sums.dimensions(), 0), Checks::dimension(sums.dimensions(), 2), n};
}

// All that both targets have.
inline Checks check_certified(const char* target, int64_t planes, int64_t given_n, int64_t k,
                              const S32& sums, const S32& scale_a, const S64& stats_a,
                              const S32& scale_b, const S64& stats_b, const U8& rung,
                              const U32& tiles, const F32& worst) {
  const auto [batch, m, n] = certify_extents(sums, given_n);
  Checks checks(target);
  checks.require(n >= 0, "n is ", n);
  checks.require(k >= 1, "k is ", k);
  if (!checks.ok()) return checks;
  checks.shape("sums", sums.dimensions(), {batch, planes, m, padded(n)});
  checks.shape("scale_a", scale_a.dimensions(), {batch, m});
  checks.shape("stats_a", stats_a.dimensions(), {batch, m, kStatsFields});
  checks.shape("scale_b", scale_b.dimensions(), {batch, n});
  checks.shape("stats_b", stats_b.dimensions(), {batch, n, kStatsFields});
  checks.shape("rung", rung.dimensions(), {batch, m, padded(n)});
  check_tiles(checks, tiles, batch, m, n);
  checks.shape("worst", worst.dimensions(), {batch, tiles_of(m), tiles_of(n)});
  return checks;
}

inline void check_wide_scales(Checks& checks, const S32& sums, int64_t given_n,
                              const S32& wide_scale_a, const S32& wide_scale_b) {
  const auto [batch, m, n] = certify_extents(sums, given_n);
  checks.shape("wide_scale_a", wide_scale_a.dimensions(), {batch, m});
  checks.shape("wide_scale_b", wide_scale_b.dimensions(), {batch, n});
}

inline Checks check_certify(const S32& sums, const S32& scale_a, const S64& stats_a,
                            const S32& scale_b, const S64& stats_b, const U8& rung,
                            const U32& tiles, const F32& worst, const S32& count,
                            const S32& wide_count, const S32& wide_scale_a, const S32& wide_scale_b,
                            const CertifyAttributes& attributes) {
  Checks checks = check_certified(kCertifyTarget, kCoarsePlanes, attributes.n, attributes.k, sums,
                                  scale_a, stats_a, scale_b, stats_b, rung, tiles, worst);
  check_count(checks, count);
  check_count(checks, wide_count);
  check_wide_scales(checks, sums, attributes.n, wide_scale_a, wide_scale_b);
  checks.moduli(attributes.moduli);
  check_fewer(checks, attributes.moduli, attributes.fewer_moduli, 0, attributes.k);
  checks.moduli(attributes.wide_moduli);
  checks.length(attributes.wide_moduli, attributes.k);
  return checks;
}

inline Checks check_certify_fine(const S32& sums, const U8& rung, const U32& tiles,
                                 const S32& scale_a, const S64& stats_a, const S32& scale_b,
                                 const S64& stats_b, const S32& wide_scale_a,
                                 const S32& wide_scale_b, const U8& rung_out, const U32& tiles_out,
                                 const F32& worst, const CertifyFineAttributes& attributes) {
  Checks checks = check_certified(kCertifyFineTarget, kFinePlanes, attributes.n, attributes.k, sums,
                                  scale_a, stats_a, scale_b, stats_b, rung_out, tiles_out, worst);
  check_wide_scales(checks, sums, attributes.n, wide_scale_a, wide_scale_b);
  checks.require(rung.untyped_data() == rung_out.untyped_data() &&
                     tiles.untyped_data() == tiles_out.untyped_data(),
                 "rung and tiles are not the buffers of the results");
  return checks;
}

inline Checks check_ladder_residues(const F64& x, const S32& scale, const S32& count,
                                    const U32& tiles, const U8& residues,
                                    const LadderResiduesAttributes& attributes) {
  Checks checks(kLadderResiduesTarget);
  checks.layout("x", attributes.layout, x.element_count());
  checks.shape("scale", scale.dimensions(), {attributes.layout.batch, attributes.layout.rows});
  check_count(checks, count);
  check_side(checks, attributes.side, tiles, attributes.layout);
  check_rungs(checks, attributes.rungs);
  check_residue_shape(checks, attributes.layout, residues);
  return checks;
}

inline Checks check_ladder_mma(const U8& lhs, const U8& rhs, const S32& count, const U32& tiles,
                               const U8& v, const MmaAttributes& attributes) {
  const MmaExtents extents = mma_extents(lhs, rhs);
  Checks checks(kLadderMmaTarget);
  check_factors(checks, lhs, rhs);
  checks.moduli(extents.moduli);
  check_count(checks, count);
  check_tiles(checks, tiles, extents.batch, extents.m, extents.n);
  check_rungs(checks, attributes.rungs);
  checks.shape("v", v.dimensions(), {extents.batch, extents.moduli, extents.m, padded(extents.n)});
  return checks;
}

inline void check_rung_map(Checks& checks, const U8& rung, const U32& tiles,
                           const CombineLayouts& layouts) {
  const int64_t batch = layouts.a.batch, m = layouts.a.rows, n = layouts.b.rows;
  checks.shape("rung", rung.dimensions(), {batch, m, padded(n)});
  check_tiles(checks, tiles, batch, m, n);
}

// `earlier` is the c that the result shares its buffer with, or nothing.
inline void check_earlier(Checks& checks, ffi::RemainingArgs earlier, const F64& c) {
  checks.require(earlier.size() <= 1, "there is more than one earlier c");
  if (checks.ok() && earlier.size() == 1) {
    const auto shared = earlier.get<F64>(0);
    checks.require(shared.has_value() && shared->untyped_data() == c.untyped_data(),
                   "the earlier c is not the buffer of the result");
  }
}

inline Checks check_ladder_combine(const U8& v, const S32& scale_a, const S32& scale_b,
                                   const F64& a, const F64& b, const S32& count, const U8& rung,
                                   const U32& tiles, ffi::RemainingArgs earlier, const F64& c,
                                   const LadderCombineAttributes& attributes) {
  Checks checks =
      check_combine(kLadderCombineTarget, scale_a, scale_b, a, b, c, attributes.product);
  const CombineLayouts layouts = combine_layouts(c, attributes.product);
  checks.shape(
      "v", v.dimensions(),
      {layouts.a.batch, attributes.product.moduli, layouts.a.rows, padded(layouts.b.rows)});
  check_count(checks, count);
  check_rung_map(checks, rung, tiles, layouts);
  check_rungs(checks, attributes.rungs);
  check_earlier(checks, earlier, c);
  return checks;
}

inline Checks check_ladder_sum(const F64& a, const F64& b, const S64& stats_a, const S64& stats_b,
                               const U8& rung, const U32& tiles, const F64& earlier, const F64& c,
                               const LadderSumAttributes& attributes) {
  const CombineLayouts layouts = attributes.layouts(c);
  Checks checks(kLadderSumTarget);
  checks.rank("c", c.dimensions(), 3);
  checks.layout("a", layouts.a, a.element_count());
  checks.layout("b", layouts.b, b.element_count());
  checks.shape("stats_a", stats_a.dimensions(), {layouts.a.batch, layouts.a.rows, kStatsFields});
  checks.shape("stats_b", stats_b.dimensions(), {layouts.b.batch, layouts.b.rows, kStatsFields});
  check_rung_map(checks, rung, tiles, layouts);
  check_rungs(checks, attributes.rungs);
  checks.require(attributes.rungs % 2 == 0, "rungs has rung 0, which the padding has");
  const int64_t group = attributes.group;
  checks.require(group == 0 || (group > 0 && (group & (group - 1)) == 0 && attributes.exact == 0),
                 "a group is no power of two, or its sums are to be exact");
  checks.require(earlier.untyped_data() == c.untyped_data(),
                 "the earlier c is not the buffer of the result");
  return checks;
}

}  // namespace ozaki
