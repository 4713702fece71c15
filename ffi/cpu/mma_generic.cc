// The grouped product in plain C++.
#include "cpu/mma_kernels.h"

namespace ozaki {
namespace {

void pack(const uint8_t* rows, int64_t stride, int64_t count, int64_t bytes, uint8_t,
          uint8_t* panel) {
  pack_plain(rows, stride, count, bytes, panel);
}

void multiply(const uint8_t* lhs, const uint8_t* rhs, int64_t rows, int64_t columns, int64_t steps,
              uint32_t* acc, int64_t stride) {
  for (int64_t column = 0; column < columns; column += kPanelRows) {
    for (int64_t row = 0; row < std::min(rows, kPanelRows); ++row) {
      uint32_t sum[kPanelRows] = {};
      for (int64_t s = 0; s < steps; ++s) {
        const uint8_t* a = lhs + s * kStepBytes + 4 * row;
        const uint8_t* b = rhs + column * steps * 4 + s * kStepBytes;
        for (int64_t j = 0; j < kPanelRows; ++j)
          for (int i = 0; i < 4; ++i) sum[j] += a[i] * b[4 * j + i];
      }
      for (int64_t j = 0; j < kPanelRows; ++j) acc[row * stride + column + j] += sum[j];
    }
  }
}

void reduce(const uint32_t* acc, int64_t count, const Modulus& modulus, uint32_t weights,
            uint8_t* v) {
  reduce_plain(acc, count, modulus, weights, v);
}

bool supported() { return true; }

}  // namespace

const MmaKernel kMmaGeneric = {"generic", supported, /*signed_lhs=*/false, pack, multiply, reduce};

}  // namespace ozaki
