// The grouped product with AVX-512 VNNI: vpdpbusd multiplies unsigned (rhs) by signed (lhs) bytes.
#if defined(__x86_64__)

#if !defined(__clang__)  // GCC 12 warns about the operands of its own intrinsics (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "cpu/mma_kernels.h"

namespace ozaki {
namespace {

#define OZAKI_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

OZAKI_TARGET OZAKI_INLINE __m128i load16(const uint8_t* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

// Packs 16 kQuads bytes of every row. Lane l of quad[i] is 16 bytes of row 4l + i: transposing the
// 4 x 4 words in every lane makes four whole steps.
template <int kQuads>
OZAKI_TARGET OZAKI_INLINE void pack_block(const uint8_t* const (&row)[kPanelRows], int64_t k,
                                          __m512i decrement, uint8_t* panel) {
  __m512i quad[kQuads][4];
  OZAKI_UNROLL for (int i = 0; i < 4; ++i) {
    OZAKI_UNROLL for (int j = 0; j < kQuads; ++j) {
      __m512i q = _mm512_castsi128_si512(load16(row[i] + k + 16 * j));
      q = _mm512_inserti32x4(q, load16(row[4 + i] + k + 16 * j), 1);
      q = _mm512_inserti32x4(q, load16(row[8 + i] + k + 16 * j), 2);
      q = _mm512_inserti32x4(q, load16(row[12 + i] + k + 16 * j), 3);
      quad[j][i] = _mm512_mask_sub_epi8(q, _mm512_movepi8_mask(q), q, decrement);
    }
  }
  OZAKI_UNROLL for (int j = 0; j < kQuads; ++j, panel += 4 * kStepBytes) {
    const __m512i low01 = _mm512_unpacklo_epi32(quad[j][0], quad[j][1]);
    const __m512i low23 = _mm512_unpacklo_epi32(quad[j][2], quad[j][3]);
    const __m512i high01 = _mm512_unpackhi_epi32(quad[j][0], quad[j][1]);
    const __m512i high23 = _mm512_unpackhi_epi32(quad[j][2], quad[j][3]);
    _mm512_store_si512(panel, _mm512_unpacklo_epi64(low01, low23));
    _mm512_store_si512(panel + kStepBytes, _mm512_unpackhi_epi64(low01, low23));
    _mm512_store_si512(panel + 2 * kStepBytes, _mm512_unpacklo_epi64(high01, high23));
    _mm512_store_si512(panel + 3 * kStepBytes, _mm512_unpackhi_epi64(high01, high23));
  }
}

// Whole cache lines as far as possible: with rows a multiple of 4 KiB apart, all 16 lines fall into
// one set of the L1 cache and do not stay until a second visit.
OZAKI_TARGET void pack(const uint8_t* rows, int64_t stride, int64_t count, int64_t bytes,
                       uint8_t decrement, uint8_t* panel) {
  const uint8_t* row[kPanelRows];
  for (int64_t i = 0; i < kPanelRows; ++i) row[i] = rows + std::min(i, count - 1) * stride;

  const __m512i decrements = _mm512_set1_epi8(decrement);
  int64_t k = 0;
  for (; k + 64 <= bytes; k += 64) pack_block<4>(row, k, decrements, panel + k * kPanelRows);
  for (; k < bytes; k += 16) pack_block<1>(row, k, decrements, panel + k * kPanelRows);
}

// Eight rows of lhs, the columns of up to three rhs panels: 24 accumulators hide the latency, and
// eight broadcasts and three loads feed 24 products. Loops over registers must unroll.
constexpr int kRows = 8;
constexpr int kMaxPanels = 3;

template <int kPanels>
OZAKI_TARGET void multiply_block(const uint8_t* lhs, const uint8_t* rhs, int64_t steps,
                                 uint32_t* acc, int64_t stride) {
  __m512i sum[kRows][kPanels];
  OZAKI_UNROLL for (int row = 0; row < kRows; ++row) {
    OZAKI_UNROLL for (int panel = 0; panel < kPanels; ++panel) {
      sum[row][panel] = _mm512_loadu_si512(acc + row * stride + panel * kPanelRows);
    }
  }

  for (int64_t s = 0; s < steps; ++s, lhs += kStepBytes, rhs += kStepBytes) {
    __m512i b[kPanels];
    OZAKI_UNROLL for (int panel = 0; panel < kPanels; ++panel) {
      b[panel] = _mm512_load_si512(rhs + panel * steps * kStepBytes);
    }
    OZAKI_UNROLL for (int row = 0; row < kRows; ++row) {
      int32_t word;
      std::memcpy(&word, lhs + 4 * row, 4);
      const __m512i a = _mm512_set1_epi32(word);
      OZAKI_UNROLL for (int panel = 0; panel < kPanels; ++panel) {
        sum[row][panel] = _mm512_dpbusd_epi32(sum[row][panel], b[panel], a);
      }
    }
  }

  OZAKI_UNROLL for (int row = 0; row < kRows; ++row) {
    OZAKI_UNROLL for (int panel = 0; panel < kPanels; ++panel) {
      _mm512_storeu_si512(acc + row * stride + panel * kPanelRows, sum[row][panel]);
    }
  }
}

void multiply(const uint8_t* lhs, const uint8_t* rhs, int64_t rows, int64_t columns, int64_t steps,
              uint32_t* acc, int64_t stride) {
  for (int64_t column = 0; column < columns; column += kMaxPanels * kPanelRows) {
    const uint8_t* b = rhs + column * steps * 4;
    for (int64_t row = 0; row < std::min(rows, kPanelRows); row += kRows) {
      const uint8_t* a = lhs + 4 * row;
      uint32_t* out = acc + row * stride + column;
      switch ((columns - column) / kPanelRows) {
        case 1:
          multiply_block<1>(a, b, steps, out, stride);
          break;
        case 2:
          multiply_block<2>(a, b, steps, out, stride);
          break;
        default:
          multiply_block<kMaxPanels>(a, b, steps, out, stride);
      }
    }
  }
}

// The sum of the four products is a vpdpbusd too: byte - 128 is signed, and 128 sum(weights) makes
// up for it. With y < 2^18 and a factor at most 1 above 2^21 / p the product stays below 2^32 and
// the quotient q is at most one too large; then r = y - q p, as unsigned, lies above r + p.
OZAKI_TARGET void reduce(const uint32_t* acc, int64_t count, const Modulus& modulus,
                         uint32_t weights, uint8_t* v) {
  const __m512i p = _mm512_set1_epi32(modulus.p);
  const __m512i factor = _mm512_set1_epi32((1u << 21) / modulus.p + 1);
  const __m512i weight = _mm512_set1_epi32(weights);
  const __m512i offset = _mm512_set1_epi32(dot4(weights, 0x80808080u, 0));
  const __m512i signs = _mm512_set1_epi32(0x80808080u);
  for (int64_t j = 0; j < count; j += 16) {
    const __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(acc + j), signs);
    const __m512i y = _mm512_dpbusd_epi32(offset, weight, bytes);
    const __m512i q = _mm512_srli_epi32(_mm512_mullo_epi32(y, factor), 21);
    const __m512i r = _mm512_sub_epi32(y, _mm512_mullo_epi32(q, p));
    const __m512i residue = _mm512_min_epu32(r, _mm512_add_epi32(r, p));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(v + j), _mm512_cvtepi32_epi8(residue));
  }
}

bool supported() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

}  // namespace

const MmaKernel kMmaAvx512Vnni = {"avx512vnni", supported, /*signed_lhs=*/true,
                                  pack,         multiply,  reduce};

}  // namespace ozaki

#endif  // __x86_64__
