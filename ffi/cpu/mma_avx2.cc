// The grouped product with AVX2, on bytes widened to 16 bits: vpmaddubsw would saturate.
#if defined(__x86_64__)

#include <immintrin.h>

#include "cpu/mma_kernels.h"

namespace ozaki {
namespace {

#define OZAKI_TARGET __attribute__((target("avx2")))

OZAKI_TARGET void pack(const uint8_t* rows, int64_t stride, int64_t count, int64_t bytes, uint8_t,
                       uint8_t* panel) {
  pack_plain(rows, stride, count, bytes, panel);
}

// Bytes 0 and 2 (parity 0) or 1 and 3 of every 32-bit word as pairs of 16-bit integers.
OZAKI_TARGET OZAKI_INLINE __m256i widen(__m256i bytes, int parity) {
  return parity ? _mm256_srli_epi16(bytes, 8) : _mm256_and_si256(bytes, _mm256_set1_epi16(255));
}

// Four rows of lhs, the 16 columns of one rhs panel.
constexpr int kRows = 4;

OZAKI_TARGET void multiply_block(const uint8_t* lhs, const uint8_t* rhs, int64_t steps,
                                 uint32_t* acc, int64_t stride) {
  __m256i sum[kRows][2] = {};
  for (int64_t s = 0; s < steps; ++s, lhs += kStepBytes, rhs += kStepBytes) {
    const __m256i* b = reinterpret_cast<const __m256i*>(rhs);
    const __m256i b0 = _mm256_load_si256(b), b1 = _mm256_load_si256(b + 1);
    OZAKI_UNROLL for (int parity = 0; parity < 2; ++parity) {
      const __m256i wide0 = widen(b0, parity), wide1 = widen(b1, parity);
      OZAKI_UNROLL for (int row = 0; row < kRows; ++row) {
        int32_t word;
        std::memcpy(&word, lhs + 4 * row, 4);
        const __m256i a = widen(_mm256_set1_epi32(word), parity);
        sum[row][0] = _mm256_add_epi32(sum[row][0], _mm256_madd_epi16(a, wide0));
        sum[row][1] = _mm256_add_epi32(sum[row][1], _mm256_madd_epi16(a, wide1));
      }
    }
  }
  OZAKI_UNROLL for (int row = 0; row < kRows; ++row) {
    OZAKI_UNROLL for (int half = 0; half < 2; ++half) {
      __m256i* out = reinterpret_cast<__m256i*>(acc + row * stride + 8 * half);
      _mm256_storeu_si256(out, _mm256_add_epi32(_mm256_loadu_si256(out), sum[row][half]));
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

OZAKI_TARGET void reduce(const uint32_t* acc, int64_t count, const Modulus& modulus,
                         uint32_t weights, uint8_t* v) {
  reduce_plain(acc, count, modulus, weights, v);
}

bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

}  // namespace

const MmaKernel kMmaAvx2 = {"avx2", supported, /*signed_lhs=*/false, pack, multiply, reduce};

}  // namespace ozaki

#endif  // __x86_64__
