// The grouped product with the dot product instructions of Armv8.2 (udot).
#if defined(__aarch64__)

#include <arm_neon.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "cpu/mma_kernels.h"

namespace ozaki {
namespace {

#define OZAKI_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))

void pack(const uint8_t* rows, int64_t stride, int64_t count, int64_t bytes, uint8_t,
          uint8_t* panel) {
  pack_plain(rows, stride, count, bytes, panel);
}

// Four rows of lhs, the 16 columns of one rhs panel.
constexpr int kRows = 4;

OZAKI_TARGET void multiply_block(const uint8_t* lhs, const uint8_t* rhs, int64_t steps,
                                 uint32_t* acc, int64_t stride) {
  uint32x4_t sum[kRows][4];
  OZAKI_UNROLL for (int row = 0; row < kRows; ++row) {
    OZAKI_UNROLL for (int quad = 0; quad < 4; ++quad) {
      sum[row][quad] = vld1q_u32(acc + row * stride + 4 * quad);
    }
  }

  for (int64_t s = 0; s < steps; ++s, lhs += kStepBytes, rhs += kStepBytes) {
    const uint8x16_t a = vld1q_u8(lhs);
    OZAKI_UNROLL for (int quad = 0; quad < 4; ++quad) {
      const uint8x16_t b = vld1q_u8(rhs + 16 * quad);
      sum[0][quad] = vdotq_laneq_u32(sum[0][quad], b, a, 0);
      sum[1][quad] = vdotq_laneq_u32(sum[1][quad], b, a, 1);
      sum[2][quad] = vdotq_laneq_u32(sum[2][quad], b, a, 2);
      sum[3][quad] = vdotq_laneq_u32(sum[3][quad], b, a, 3);
    }
  }

  OZAKI_UNROLL for (int row = 0; row < kRows; ++row) {
    OZAKI_UNROLL for (int quad = 0; quad < 4; ++quad) {
      vst1q_u32(acc + row * stride + 4 * quad, sum[row][quad]);
    }
  }
}

void multiply(const uint8_t* lhs, const uint8_t* rhs, int64_t rows, int64_t columns, int64_t steps,
              uint32_t* acc, int64_t stride) {
  for (int64_t column = 0; column < columns; column += kPanelRows)
    for (int64_t row = 0; row < std::min(rows, kPanelRows); row += kRows)
      multiply_block(lhs + 4 * row, rhs + column * steps * 4, steps, acc + row * stride + column,
                     stride);
}

void reduce(const uint32_t* acc, int64_t count, const Modulus& modulus, uint32_t weights,
            uint8_t* v) {
  reduce_plain(acc, count, modulus, weights, v);
}

bool supported() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
  return true;  // every Apple CPU for macOS
#endif
}

}  // namespace

const MmaKernel kMmaNeon = {"neon", supported, /*signed_lhs=*/false, pack, multiply, reduce};

}  // namespace ozaki

#endif  // __aarch64__
