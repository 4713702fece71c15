// The FFI targets: names, signatures and checks, the same on every platform.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <type_traits>

#include "bindings/checks.h"
#include "common/statistics.h"

namespace ozaki {

namespace ffi = xla::ffi;
namespace nb = nanobind;

constexpr char kStatsTarget[] = "jax_ozaki.stats.v1";
constexpr char kQuantizeTarget[] = "jax_ozaki.quantize.v1";
constexpr char kResiduesTarget[] = "jax_ozaki.residues.v1";
constexpr char kGroupedMmaTarget[] = "jax_ozaki.grouped_mma.v1";
constexpr char kCombineTarget[] = "jax_ozaki.combine.v1";

using F64 = ffi::Buffer<ffi::F64>;
using C128 = ffi::Buffer<ffi::C128>;
using S32 = ffi::Buffer<ffi::S32>;
using S64 = ffi::Buffer<ffi::S64>;
using U8 = ffi::Buffer<ffi::U8>;
// Products modulo p_i, uint8 [batch, moduli, m, np], or on some platforms the partial sums of the
// CRT, uint32 [batch, moduli / 3 rounded up, m, np].
using V = ffi::AnyBuffer;
template <typename Buffer>
using Result = ffi::Result<Buffer>;

// ---- Attributes, all int64 ----------------------------------------------------------------------

// A row takes the scale of fewer_moduli moduli where that rounds at most most_rounded of its
// elements (0: nowhere).
struct StatsAttributes {
  int64_t moduli, fewer_moduli, most_rounded;
  Layout layout;
};

struct QuantizeAttributes {
  int64_t fewer_moduli, most_rounded;
  Layout layout;
};

struct CombineAttributes {
  int64_t moduli, k;
  int64_t a_stride_b, a_stride_r, a_stride_k;
  int64_t b_stride_b, b_stride_r, b_stride_k;
};

}  // namespace ozaki

// Members of attributes that have those of a Layout, or the strides of two.
#define OZAKI_LAYOUT_MEMBERS                                                                 \
  StructMember<int64_t>("batch"), StructMember<int64_t>("rows"), StructMember<int64_t>("k"), \
      StructMember<int64_t>("stride_b"), StructMember<int64_t>("stride_r"),                  \
      StructMember<int64_t>("stride_k")
#define OZAKI_STRIDE_MEMBERS                                                    \
  StructMember<int64_t>("a_stride_b"), StructMember<int64_t>("a_stride_r"),     \
      StructMember<int64_t>("a_stride_k"), StructMember<int64_t>("b_stride_b"), \
      StructMember<int64_t>("b_stride_r"), StructMember<int64_t>("b_stride_k")

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::Layout, OZAKI_LAYOUT_MEMBERS);
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::StatsAttributes, StructMember<int64_t>("moduli"),
                                      StructMember<int64_t>("fewer_moduli"),
                                      StructMember<int64_t>("most_rounded"), OZAKI_LAYOUT_MEMBERS);
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::QuantizeAttributes,
                                      StructMember<int64_t>("fewer_moduli"),
                                      StructMember<int64_t>("most_rounded"), OZAKI_LAYOUT_MEMBERS);
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(ozaki::CombineAttributes, StructMember<int64_t>("moduli"),
                                      StructMember<int64_t>("k"), OZAKI_STRIDE_MEMBERS);

namespace ozaki {

// ---- Signatures, of float64 operands X unless others are given ----------------------------------

// (x) -> (scale, stats, scratch)
template <typename Context, typename X = F64>
auto bind_stats() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<X>()
      .template Ret<S32>()
      .template Ret<S64>()
      .template Ret<U8>()
      .template Attrs<StatsAttributes>();
}

// (x) -> (residues, scale, stats, scratch)
template <typename Context, typename X = F64>
auto bind_quantize() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<X>()
      .template Ret<U8>()
      .template Ret<S32>()
      .template Ret<S64>()
      .template Ret<U8>()
      .template Attrs<QuantizeAttributes>();
}

// (x, scale) -> residues
template <typename Context, typename X = F64>
auto bind_residues() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<X>()
      .template Arg<S32>()
      .template Ret<U8>()
      .template Attrs<Layout>();
}

// (lhs, rhs) -> v
template <typename Context, typename Product = V>
auto bind_grouped_mma() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<U8>()
      .template Arg<U8>()
      .template Ret<Product>();
}

// (v, scale_a, scale_b, a, b) -> c
template <typename Context, typename X = F64, typename Product = V>
auto bind_combine() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<Product>()
      .template Arg<S32>()
      .template Arg<S32>()
      .template Arg<X>()
      .template Arg<X>()
      .template Ret<X>()
      .template Attrs<CombineAttributes>();
}

struct Handlers {
  XLA_FFI_Handler *stats, *quantize, *residues, *grouped_mma, *combine;
};

inline void add_handler(nb::dict& capsules, const char* name, XLA_FFI_Handler* handler) {
  capsules[name] = nb::capsule(reinterpret_cast<void*>(handler));
}

// Target name -> capsule of its handler.
inline nb::dict registrations(const Handlers& handlers) {
  nb::dict capsules;
  add_handler(capsules, kStatsTarget, handlers.stats);
  add_handler(capsules, kQuantizeTarget, handlers.quantize);
  add_handler(capsules, kResiduesTarget, handlers.residues);
  add_handler(capsules, kGroupedMmaTarget, handlers.grouped_mma);
  add_handler(capsules, kCombineTarget, handlers.combine);
  return capsules;
}

// What every module says about its build.
inline nb::dict common_build_info() {
  nb::dict info;
  info["ffi_hash"] = OZAKI_FFI_HASH;
  info["api_version"] = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  info["build_flags"] = OZAKI_BUILD_FLAGS;
  return info;
}

// ---- Arguments and their checks -----------------------------------------------------------------

// The number of moduli of residues, which holds once they have been checked.
inline int moduli_of(const U8& residues) {
  return static_cast<int>(Checks::dimension(residues.dimensions(), 1));
}

// What the scales of real rows are made for, once both have been checked.
inline ScaleBounds scale_bounds(int64_t moduli, int64_t fewer_moduli, int64_t most_rounded) {
  return {kBounds[static_cast<int>(moduli)], kBounds[static_cast<int>(fewer_moduli)],
          static_cast<uint32_t>(most_rounded)};
}

inline void check_fewer(Checks& checks, int64_t moduli, int64_t fewer_moduli, int64_t most_rounded,
                        int64_t k) {
  checks.moduli(fewer_moduli);
  checks.length(fewer_moduli, k);
  checks.require(fewer_moduli <= moduli && 0 <= most_rounded && most_rounded < INT32_MAX,
                 "fewer_moduli is ", fewer_moduli, " of ", moduli, " moduli, most_rounded ",
                 most_rounded);
}

inline void check_rows(Checks& checks, const Layout& layout, const S32& scale, const S64& stats) {
  checks.shape("scale", scale.dimensions(), {layout.batch, layout.rows});
  checks.shape("stats", stats.dimensions(), {layout.batch, layout.rows, kStatsFields});
}

inline void check_residue_shape(Checks& checks, const Layout& layout, const U8& residues) {
  const int moduli = moduli_of(residues);
  checks.rank("residues", residues.dimensions(), 4);
  checks.moduli(moduli);
  checks.shape("residues", residues.dimensions(),
               {layout.batch, moduli, layout.rows, padded_k(layout.k)});
}

inline Checks check_stats(const F64& x, const StatsAttributes& attributes, const S32& scale,
                          const S64& stats) {
  Checks checks(kStatsTarget);
  checks.layout("x", attributes.layout, x.element_count());
  checks.moduli(attributes.moduli);
  checks.length(attributes.moduli, attributes.layout.k);
  check_fewer(checks, attributes.moduli, attributes.fewer_moduli, attributes.most_rounded,
              attributes.layout.k);
  check_rows(checks, attributes.layout, scale, stats);
  return checks;
}

inline Checks check_quantize(const F64& x, const QuantizeAttributes& attributes, const U8& residues,
                             const S32& scale, const S64& stats,
                             const char* target = kQuantizeTarget) {
  const Layout& layout = attributes.layout;
  Checks checks(target);
  checks.layout("x", layout, x.element_count());
  check_residue_shape(checks, layout, residues);
  checks.length(moduli_of(residues), layout.k);
  check_fewer(checks, moduli_of(residues), attributes.fewer_moduli, attributes.most_rounded,
              layout.k);
  check_rows(checks, layout, scale, stats);
  return checks;
}

inline Checks check_residues(const F64& x, const Layout& layout, const S32& scale,
                             const U8& residues) {
  Checks checks(kResiduesTarget);
  checks.layout("x", layout, x.element_count());
  checks.shape("scale", scale.dimensions(), {layout.batch, layout.rows});
  check_residue_shape(checks, layout, residues);
  return checks;
}

enum class VTypes { kBytes, kBytesAndWords };

inline bool is_words(const V& v) { return v.element_type() == ffi::U32; }

inline void check_v(Checks& checks, const V& v, VTypes allowed, int64_t batch, int64_t moduli,
                    int64_t m, int64_t n) {
  const bool words = is_words(v);
  checks.require(words || v.element_type() == ffi::U8, "v is neither uint8 nor uint32");
  checks.require(!words || allowed == VTypes::kBytesAndWords,
                 "v is uint32 (partial sums of the CRT), this platform has only uint8 (residues)");
  checks.shape("v", v.dimensions(), {batch, words ? (moduli + 2) / 3 : moduli, m, padded(n)});
}

struct MmaExtents {
  int64_t batch, moduli, m, n, kp;
};

inline MmaExtents mma_extents(const U8& lhs, const U8& rhs) {
  const Checks::Dimensions dimensions = lhs.dimensions();
  return {Checks::dimension(dimensions, 0), Checks::dimension(dimensions, 1),
          Checks::dimension(dimensions, 2), Checks::dimension(rhs.dimensions(), 2),
          Checks::dimension(dimensions, 3)};
}

// Residues, or planes, of both sides.
inline void check_factors(Checks& checks, const U8& lhs, const U8& rhs) {
  const MmaExtents extents = mma_extents(lhs, rhs);
  checks.rank("lhs", lhs.dimensions(), 4);
  checks.require(extents.kp % kVectorBytes == 0, "lhs has rows of ", extents.kp,
                 " bytes, not a multiple of 16");
  checks.shape("rhs", rhs.dimensions(), {extents.batch, extents.moduli, extents.n, extents.kp});
}

inline Checks check_grouped_mma(const U8& lhs, const U8& rhs, const V& v, VTypes allowed,
                                const char* target = kGroupedMmaTarget) {
  const MmaExtents extents = mma_extents(lhs, rhs);
  Checks checks(target);
  check_factors(checks, lhs, rhs);
  checks.moduli(extents.moduli);
  check_v(checks, v, allowed, extents.batch, extents.moduli, extents.m, extents.n);
  return checks;
}

struct CombineLayouts {
  Layout a, b;
};

template <typename C>
CombineLayouts combine_layouts(const C& c, const CombineAttributes& of) {
  const Checks::Dimensions dimensions = c.dimensions();
  const int64_t batch = Checks::dimension(dimensions, 0);
  const int64_t m = Checks::dimension(dimensions, 1), n = Checks::dimension(dimensions, 2);
  return {{batch, m, of.k, of.a_stride_b, of.a_stride_r, of.a_stride_k},
          {batch, n, of.k, of.b_stride_b, of.b_stride_r, of.b_stride_k}};
}

// All of a combine stage but v.
template <typename X>
Checks check_combine(const char* target, const S32& scale_a, const S32& scale_b, const X& a,
                     const X& b, const X& c, const CombineAttributes& attributes) {
  const CombineLayouts layouts = combine_layouts(c, attributes);
  const int64_t batch = layouts.a.batch, m = layouts.a.rows, n = layouts.b.rows;
  Checks checks(target);
  checks.rank("c", c.dimensions(), 3);
  checks.moduli(attributes.moduli, std::is_same_v<X, C128> ? kMaxComplexModuli : kMaxModuli);
  checks.shape("scale_a", scale_a.dimensions(), {batch, m});
  checks.shape("scale_b", scale_b.dimensions(), {batch, n});
  checks.layout("a", layouts.a, a.element_count());
  checks.layout("b", layouts.b, b.element_count());
  return checks;
}

}  // namespace ozaki
