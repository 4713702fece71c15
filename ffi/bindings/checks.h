// Consistency checks of the FFI targets' arguments. Python passes nothing that fails them; an
// exported or hand-made program may.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "common/layout.h"
#include "common/scale.h"
#include "common/tables.h"
#include "xla/ffi/api/ffi.h"

namespace ozaki {

// Remembers the first problem of a call to `target`.
class Checks {
 public:
  using Dimensions = xla::ffi::Span<const int64_t>;

  explicit Checks(const char* target) : target_(target) {}

  bool ok() const { return problem_.empty(); }

  xla::ffi::Error error() const {
    return ok() ? xla::ffi::Error::Success()
                : xla::ffi::Error::InvalidArgument(std::string(target_) + ": " + problem_);
  }

  // What is wrong unless it holds, in parts: texts, numbers and dimensions. They are put together
  // only then, since a handler makes dozens of checks in a call of a few microseconds.
  template <typename... Parts>
  void require(bool holds, const Parts&... parts) {
    if (!holds && ok()) (append(parts), ...);
  }

  void rank(const char* name, Dimensions given, size_t rank) {
    require(given.size() == rank, name, " has shape ", given, "; ", rank, " dimensions are needed");
  }

  // Dimension i, which later checks rely on; 0 where there is none.
  static int64_t dimension(Dimensions given, size_t i) { return i < given.size() ? given[i] : 0; }

  void shape(const char* name, Dimensions given, std::initializer_list<int64_t> expected) {
    const Dimensions wanted(expected.begin(), expected.size());
    bool equal = given.size() == wanted.size();
    for (size_t i = 0; equal && i < wanted.size(); ++i) equal = given[i] == wanted[i];
    require(equal, name, " has shape ", given, ", expected ", wanted);
  }

  void moduli(int64_t moduli, int most = kMaxModuli) {
    require(kMinModuli <= moduli && moduli <= most, "the number of moduli is ", moduli,
            ", allowed are ", kMinModuli, " to ", most);
  }

  // `moduli` moduli have a scale for every row of k elements.
  void length(int64_t moduli, int64_t k) {
    if (ok()) {
      require(admits(kBounds[static_cast<int>(moduli)], k), "k = ", k, " is too long for ", moduli,
              " moduli");
    }
  }

  // The layout stays inside a buffer of `elements` elements and can be read in whole cache lines.
  void layout(const char* name, const Layout& layout, int64_t elements) {
    const int64_t extents[] = {layout.batch, layout.rows, layout.k};
    const int64_t strides[] = {layout.stride_b, layout.stride_r, layout.stride_k};
    const auto require = [&](bool holds, const auto&... parts) {
      this->require(holds, "the layout of ", name, ", extents ", Dimensions(extents, 3),
                    " and strides ", Dimensions(strides, 3), ", ", parts...);
    };
    const auto require_inside = [&](bool holds) {
      require(holds, "leaves its buffer of ", elements, " elements");
    };
    require(layout.batch >= 0 && layout.rows >= 0 && layout.k >= 0, "has a negative extent");
    if (layout.batch == 0 || layout.rows == 0 || layout.k == 0) return;
    require(layout.stride_k == 1 || layout.stride_r == 1 || layout.k == 1 || layout.rows == 1,
            "has neither stride_r nor stride_k equal to 1");
    int64_t room = elements - 1;  // the largest offset left
    for (int i = 0; i < 3; ++i) {
      const int64_t steps = extents[i] - 1, stride = strides[i];
      if (steps == 0) continue;
      const bool inside = stride >= 0 && (stride == 0 || steps <= room / stride);
      require_inside(inside);
      if (!inside) return;
      room -= steps * stride;
    }
    require_inside(room >= 0);
  }

 private:
  void append(const std::string& text) { problem_ += text; }
  void append(int64_t number) { problem_ += std::to_string(number); }
  void append(Dimensions dimensions) {
    problem_ += "(";
    for (size_t i = 0; i < dimensions.size(); ++i) {
      problem_ += (i == 0 ? "" : ", ") + std::to_string(dimensions[i]);
    }
    problem_ += ")";
  }

  const char* target_;
  std::string problem_;
};

}  // namespace ozaki
