// Outputs of rows and columns with non-finite elements: numerics.md, section 7.
#pragma once

#include "common/float64.h"

namespace ozaki {

// What the products a_h b_h of one output add up to, seen one by one. Finite products do not count.
struct SpecialSum {
  bool nan = false, positive = false, negative = false;

  OZAKI_HD void add(uint64_t a, uint64_t b) {
    const bool infinite = is_inf(a) || is_inf(b);
    nan |= is_nan(a) || is_nan(b) || (infinite && (is_zero(a) || is_zero(b)));
    const bool minus = is_negative(a ^ b);
    positive |= infinite && !minus;
    negative |= infinite && minus;
  }

  OZAKI_HD void join(const SpecialSum& other) {
    nan |= other.nan;
    positive |= other.positive;
    negative |= other.negative;
  }

  // NaN if any product is NaN or infinities of both signs occur, else that infinity.
  OZAKI_HD uint64_t bits() const {
    if (nan || positive == negative) return kNaNBits;
    return kInfinityBits | (negative ? kSignBit : 0);
  }
};

}  // namespace ozaki
