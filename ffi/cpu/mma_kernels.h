// What an instruction set provides to the grouped product, and the plain C++ that several share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/residue.h"
#include "cpu/grouped_mma.h"

namespace ozaki {

// Operands are packed in panels of 16 rows (of lhs or rhs), four consecutive k of a row together:
// panel[k / 4][row][k % 4]. A step is one k / 4. The same panels serve every instruction set.
constexpr int64_t kPanelRows = 16;
constexpr int64_t kStepBytes = 4 * kPanelRows;
constexpr int64_t kMaxSteps = 128;  // packed at a time

struct MmaKernel {
  const char* name;
  bool (*supported)();

  // lhs is multiplied as signed bytes: those above 127 are packed as byte - p.
  bool signed_lhs;

  // Packs `bytes` (a multiple of 16) of 16 rows; rows from `count` on repeat the last one. Bytes
  // above 127 are lowered by `decrement`, 0 unless signed_lhs.
  void (*pack)(const uint8_t* rows, int64_t stride, int64_t count, int64_t bytes, uint8_t decrement,
               uint8_t* panel);

  // acc[row * stride + column] += lhs . rhs modulo 2^32 over `steps`, for one lhs panel and the
  // adjacent rhs panels that make up `columns`. Rows from `rows` on need not be computed.
  void (*multiply)(const uint8_t* lhs, const uint8_t* rhs, int64_t rows, int64_t columns,
                   int64_t steps, uint32_t* acc, int64_t stride);

  // v[j] = the bytes of acc[j] times the packed bytes of weights, mod p. count is a multiple of 16.
  void (*reduce)(const uint32_t* acc, int64_t count, const Modulus& modulus, uint32_t weights,
                 uint8_t* v);
};

extern const MmaKernel kMmaGeneric, kMmaAvx2, kMmaAvx512Vnni, kMmaNeon;

// Those of this architecture, the fastest first; a CPU may not support all.
inline std::vector<const MmaKernel*> mma_kernels() {
  return {
#if defined(__x86_64__)
      &kMmaAvx512Vnni, &kMmaAvx2,
#elif defined(__aarch64__)
      &kMmaNeon,
#endif
      &kMmaGeneric};
}

// The products by a kernel that this CPU supports.
void grouped_mma(const MmaKernel& kernel, const uint8_t* lhs, const uint8_t* rhs, uint8_t* v,
                 const MmaSizes& sizes, const Scheduler& scheduler);

void magnitude(const MmaKernel& kernel, const uint8_t* lhs, const uint8_t* rhs, int32_t* sums,
               const MmaSizes& sizes, const Flagged& flagged, const Scheduler& scheduler);

// Inlined into a kernel's own functions, so that they are compiled for its instruction set.
#define OZAKI_INLINE inline __attribute__((always_inline))

OZAKI_INLINE void pack_plain(const uint8_t* rows, int64_t stride, int64_t count, int64_t bytes,
                             uint8_t* panel) {
  for (int64_t row = 0; row < kPanelRows; ++row) {
    const uint8_t* source = rows + std::min(row, count - 1) * stride;
    for (int64_t k = 0; k < bytes; k += 4)
      std::memcpy(panel + k * kPanelRows + 4 * row, source + k, 4);
  }
}

OZAKI_INLINE void reduce_plain(const uint32_t* acc, int64_t count, Modulus modulus,
                               uint32_t weights, uint8_t* v) {
  for (int64_t j = 0; j < count; ++j) v[j] = mod_p(dot4(acc[j], weights, 0), modulus);
}

}  // namespace ozaki
