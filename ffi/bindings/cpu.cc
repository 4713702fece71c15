// FFI handlers of the CPU stages and the Python module _cpu that registers them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "bindings/checks.h"
#include "cpu/combine.h"
#include "cpu/grouped_mma.h"
#include "cpu/quantize.h"

namespace nb = nanobind;
namespace ffi = xla::ffi;

namespace ozaki {
namespace {

using F64 = ffi::Buffer<ffi::F64>;
using S32 = ffi::Buffer<ffi::S32>;
using S64 = ffi::Buffer<ffi::S64>;
using U8 = ffi::Buffer<ffi::U8>;
template <typename Buffer>
using Result = ffi::Result<Buffer>;

Scheduler scheduler(ffi::ThreadPool& pool) {
  return {[&pool](std::function<void()> task) { pool.Schedule(std::move(task)); },
          std::max<int64_t>(pool.num_threads(), 1)};
}

void check_rows(Checks& checks, const Layout& layout, const S32& scale, const S64& stats) {
  checks.shape("scale", scale.dimensions(), {layout.batch, layout.rows});
  checks.shape("stats", stats.dimensions(), {layout.batch, layout.rows, kStatsFields});
}

// The number of moduli, from the residues' shape.
int64_t check_residues(Checks& checks, const Layout& layout, const U8& residues) {
  const int64_t moduli = Checks::dimension(residues.dimensions(), 1);
  checks.rank("residues", residues.dimensions(), 4);
  checks.moduli(moduli);
  checks.shape("residues", residues.dimensions(),
               {layout.batch, moduli, layout.rows, padded(layout.k)});
  return moduli;
}

ffi::Error stats_handler(ffi::ThreadPool pool, F64 x, Result<S32> scale, Result<S64> stats,
                         Result<U8>, int64_t moduli, int64_t batch, int64_t rows, int64_t k,
                         int64_t stride_b, int64_t stride_r, int64_t stride_k) {
  const Operand operand{x.typed_data(), {batch, rows, k, stride_b, stride_r, stride_k}};
  Checks checks("stats.v1");
  checks.layout("x", operand.layout, x.element_count());
  checks.moduli(moduli);
  checks.length(moduli, k);
  check_rows(checks, operand.layout, *scale, *stats);
  if (checks.ok())
    statistics(operand, static_cast<int>(moduli), scale->typed_data(), stats->typed_data(),
               scheduler(pool));
  return checks.error();
}

ffi::Error quantize_handler(ffi::ThreadPool pool, F64 x, Result<U8> out, Result<S32> scale,
                            Result<S64> stats, Result<U8>, int64_t batch, int64_t rows, int64_t k,
                            int64_t stride_b, int64_t stride_r, int64_t stride_k) {
  const Operand operand{x.typed_data(), {batch, rows, k, stride_b, stride_r, stride_k}};
  Checks checks("quantize.v1");
  checks.layout("x", operand.layout, x.element_count());
  const int64_t moduli = check_residues(checks, operand.layout, *out);
  checks.length(moduli, k);
  check_rows(checks, operand.layout, *scale, *stats);
  if (checks.ok())
    quantize(operand, static_cast<int>(moduli), out->typed_data(), scale->typed_data(),
             stats->typed_data(), scheduler(pool));
  return checks.error();
}

ffi::Error residues_handler(ffi::ThreadPool pool, F64 x, S32 scale, Result<U8> out, int64_t batch,
                            int64_t rows, int64_t k, int64_t stride_b, int64_t stride_r,
                            int64_t stride_k) {
  const Operand operand{x.typed_data(), {batch, rows, k, stride_b, stride_r, stride_k}};
  Checks checks("residues.v1");
  checks.layout("x", operand.layout, x.element_count());
  checks.shape("scale", scale.dimensions(), {batch, rows});
  const int64_t moduli = check_residues(checks, operand.layout, *out);
  if (checks.ok())
    residues(operand, static_cast<int>(moduli), scale.typed_data(), out->typed_data(),
             scheduler(pool));
  return checks.error();
}

ffi::Error grouped_mma_handler(ffi::ThreadPool pool, U8 lhs, U8 rhs, Result<U8> v) {
  const Checks::Dimensions dimensions = lhs.dimensions();
  const MmaSizes sizes{Checks::dimension(dimensions, 0), Checks::dimension(dimensions, 1),
                       Checks::dimension(dimensions, 2), Checks::dimension(rhs.dimensions(), 2),
                       Checks::dimension(dimensions, 3)};
  Checks checks("grouped_mma.v1");
  checks.rank("lhs", dimensions, 4);
  checks.moduli(sizes.moduli);
  checks.require(sizes.kp == padded(sizes.kp),
                 "lhs has rows of " + std::to_string(sizes.kp) + " bytes, not a multiple of 16");
  checks.shape("rhs", rhs.dimensions(), {sizes.batch, sizes.moduli, sizes.n, sizes.kp});
  checks.shape("v", v->dimensions(), {sizes.batch, sizes.moduli, sizes.m, padded(sizes.n)});
  if (checks.ok()) {
    const std::string problem =
        grouped_mma(lhs.typed_data(), rhs.typed_data(), v->typed_data(), sizes, scheduler(pool));
    checks.require(problem.empty(), problem);
  }
  return checks.error();
}

ffi::Error combine_handler(ffi::ThreadPool pool, U8 v, S32 lhs_scale, S32 rhs_scale, F64 lhs,
                           F64 rhs, Result<F64> c, int64_t k, int64_t a_stride_b,
                           int64_t a_stride_r, int64_t a_stride_k, int64_t b_stride_b,
                           int64_t b_stride_r, int64_t b_stride_k) {
  const Checks::Dimensions dimensions = c->dimensions();
  const int64_t batch = Checks::dimension(dimensions, 0), m = Checks::dimension(dimensions, 1);
  const int64_t n = Checks::dimension(dimensions, 2), moduli = Checks::dimension(v.dimensions(), 1);
  const Operand a{lhs.typed_data(), {batch, m, k, a_stride_b, a_stride_r, a_stride_k}};
  const Operand b{rhs.typed_data(), {batch, n, k, b_stride_b, b_stride_r, b_stride_k}};
  Checks checks("combine.v1");
  checks.rank("c", dimensions, 3);
  checks.rank("v", v.dimensions(), 4);
  checks.moduli(moduli);
  checks.shape("v", v.dimensions(), {batch, moduli, m, padded(n)});
  checks.shape("scale_a", lhs_scale.dimensions(), {batch, m});
  checks.shape("scale_b", rhs_scale.dimensions(), {batch, n});
  checks.layout("a", a.layout, lhs.element_count());
  checks.layout("b", b.layout, rhs.element_count());
  if (checks.ok())
    combine(v.typed_data(), static_cast<int>(moduli), lhs_scale.typed_data(),
            rhs_scale.typed_data(), a, b, c->typed_data(), scheduler(pool));
  return checks.error();
}

// The attributes of a layout, `prefix` before each stride.
template <typename Binding>
auto with_strides(Binding binding, const std::string& prefix = "") {
  return std::move(binding)
      .template Attr<int64_t>(prefix + "stride_b")
      .template Attr<int64_t>(prefix + "stride_r")
      .template Attr<int64_t>(prefix + "stride_k");
}

template <typename Binding>
auto with_layout(Binding binding) {
  return with_strides(std::move(binding)
                          .template Attr<int64_t>("batch")
                          .template Attr<int64_t>("rows")
                          .template Attr<int64_t>("k"));
}

auto bind() { return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>(); }

XLA_FFI_DEFINE_HANDLER(
    kStats, stats_handler,
    with_layout(bind().Arg<F64>().Ret<S32>().Ret<S64>().Ret<U8>().Attr<int64_t>("moduli")));
XLA_FFI_DEFINE_HANDLER(kQuantize, quantize_handler,
                       with_layout(bind().Arg<F64>().Ret<U8>().Ret<S32>().Ret<S64>().Ret<U8>()));
XLA_FFI_DEFINE_HANDLER(kResidues, residues_handler,
                       with_layout(bind().Arg<F64>().Arg<S32>().Ret<U8>()));
XLA_FFI_DEFINE_HANDLER(kGroupedMma, grouped_mma_handler, bind().Arg<U8>().Arg<U8>().Ret<U8>());
XLA_FFI_DEFINE_HANDLER(
    kCombine, combine_handler,
    with_strides(
        with_strides(
            bind().Arg<U8>().Arg<S32>().Arg<S32>().Arg<F64>().Arg<F64>().Ret<F64>().Attr<int64_t>(
                "k"),
            "a_"),
        "b_"));

nb::dict registrations() {
  nb::dict handlers;
  const auto add = [&handlers](const char* name, XLA_FFI_Handler* handler) {
    handlers[name] = nb::capsule(reinterpret_cast<void*>(handler));
  };
  add("jax_ozaki.stats.v1", kStats);
  add("jax_ozaki.quantize.v1", kQuantize);
  add("jax_ozaki.residues.v1", kResidues);
  add("jax_ozaki.grouped_mma.v1", kGroupedMma);
  add("jax_ozaki.combine.v1", kCombine);
  return handlers;
}

nb::dict build_info() {
  nb::dict info;
  info["ffi_hash"] = OZAKI_FFI_HASH;
  info["api_version"] = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  info["build_flags"] = OZAKI_BUILD_FLAGS;
  info["cpu_isa"] = mma_isa().name;
  return info;
}

}  // namespace
}  // namespace ozaki

NB_MODULE(_cpu, module) {
  module.def("registrations", &ozaki::registrations, "Target name -> capsule of its FFI handler.");
  module.def("build_info", &ozaki::build_info, "What this module was built from, and how.");
}
