// An output as a float64 sum in one fixed order, for what no modulus set certifies: chains of
// kChain consecutive products, each an FMA onto the chain's sum from zero; the sums of `group`
// consecutive chains added in order; the sums of the groups added in order.
//
// Without overflow and underflow a product takes part in at most kChain + (group - 1) +
// (groups - 1) roundings. Overflow leaves an infinity or NaN to the end. An FMA that underflows
// is wrong by another 2^-1075 at most, and nothing where |C| >= 2^-960 and hence |A||B| >= 2^-961.
// So a result is taken if it is finite and no smaller; the window of accumulate.h gives the others.
//
// Products with a zero change no result that is taken, at most the sign of a zero on the way.
#pragma once

#include "common/float64.h"

namespace ozaki {

constexpr int kChain = 8;

OZAKI_HD bool is_taken(uint64_t bits) {
  const uint64_t magnitude = magnitude_bits(bits);
  return magnitude >= uint64_t{1023 - 960} << 52 && magnitude < kInfinityBits;
}

// Stands for an output that the window is to give: a NaN, which no sum of finite products is.
constexpr uint64_t kLeftToWindow = kNaNBits | 0x4c454654;

}  // namespace ozaki
