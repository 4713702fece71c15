// The grouped INT8 matrix product: every modulus of every batch element, reduced modulo p and
// multiplied by its CRT inverse tile by tile.
#pragma once

#include <cstdint>
#include <string>

#include "cpu/flagged.h"
#include "cpu/parallel.h"

namespace ozaki {

struct MmaSizes {
  int64_t batch, moduli, m, n;
  int64_t kp;  // contraction length, padded with zeros to a multiple of 16
};

// v[b,i,row,column] = inv_i sum_h lhs[b,i,row,h] rhs[b,i,column,h] mod p_i, a byte in [0, p_i), for
// lhs [batch, moduli, m, kp], rhs [batch, moduli, n, kp] and v [batch, moduli, m, np], np = n
// rounded up to a multiple of 16. Returns why it cannot be done (mma_isa), empty on success.
std::string grouped_mma(const uint8_t* lhs, const uint8_t* rhs, uint8_t* v, const MmaSizes& sizes,
                        const Scheduler& scheduler);

// The same of the first `count` moduli, inv_i for `count` of them, where tiles are flagged.
std::string grouped_mma(const uint8_t* lhs, const uint8_t* rhs, uint8_t* v, const MmaSizes& sizes,
                        int count, const Flagged& flagged, const Scheduler& scheduler);

// sums[b,i,row,column] = sum_h lhs[b,i,row,h] rhs[b,i,column,h], int32, where tiles are flagged; of
// planes of magnitudes, as many as sizes.moduli says.
std::string magnitude(const uint8_t* lhs, const uint8_t* rhs, int32_t* sums, const MmaSizes& sizes,
                      const Flagged& flagged, const Scheduler& scheduler);

// The instruction set in use ("avx512vnni", "avx2", "neon" or "generic"), chosen once: this CPU's
// best, or the one JAX_OZAKI_CPU_ISA names. Where that one cannot run `error` says so.
struct MmaIsa {
  std::string name, error;
};
const MmaIsa& mma_isa();

}  // namespace ozaki
