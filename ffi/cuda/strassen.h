// One level of Strassen-Winograd around the grouped product: seven products of quarters in place of
// eight. All sums, of quarters and of products, are formed modulo p, so that every step is exact
// and C is that of the plain stages to the bit.
//
// Rows, columns and k are split at the half, rounded up, with zeros in the place of what an odd
// extent lacks. With the negated quarters of A on the right, both operands form the same
// differences of their quarters, those of B transposed:
//
//          w          v          x     y
//   A    -A22       -A12        A21   A11        z1 = x - y     z3 = v - z2
//   B     B22        B21        B12   B11        z2 = w - z1    z4 = x - w
//
// P_j = S_j T_j are the products of
//
//   j     0    1    2    3    4    5    6        C11 = P0 - P1        U = P0 - P2
//   S_j   y    v    z2   w    z3   z1   z4       C12 = U - P4 + P6
//   T_j   y    v    z2   z3   w    z4   z1       C21 = U - P3 + P5
//                                                C22 = U + P5 + P6
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "combine.h"
#include "common/layout.h"
#include "device.h"

namespace ozaki {

constexpr int kStrassenProducts = 7;

// Extents of a quarter.
OZAKI_HD int64_t strassen_half(int64_t extent) { return (extent + 1) / 2; }
// The contraction length of the seven products: half of k, padded to whole cache lines with numbers
// that are 0 modulo p.
OZAKI_HD int64_t strassen_depth(int64_t k) { return round_up(strassen_half(k), kLineBytes); }

enum class StrassenSide { kLhs, kRhs };

// Enqueues the residues of S_j (lhs) or T_j (rhs) on `stream` of `device`, the current one, from
// the rows of an operand and their scales, [batch, rows]. Rows are those of A or the columns of B,
// real or the parts of complex ones.
//   residues: [batch, 7, parts, moduli, strassen_half(rows), strassen_depth(k / parts)],
// which launch_grouped_mma multiplies as a batch of 7 batch. Where `count` is not null, the first
// *count moduli alone are made, none at all of 0. Allocates nothing, waits for nothing.
Status launch_strassen_quantize(const double* x, const Layout& layout, StrassenSide side,
                                int moduli, const int32_t* count, const int32_t* scale,
                                uint8_t* residues, const Device& device, cudaStream_t stream);

// launch_combine, or launch_combine_complex where layouts count parts, for the residues of the
// seven products,
//   combine.v: [batch, 7, parts, moduli, strassen_half(m), strassen_half(n) padded to 16].
// Where `count` is not null, X comes from the first *count moduli; of 0 nothing is written.
Status launch_strassen_combine(const Combine& combine, int moduli, const int32_t* count,
                               const Device& device, cudaStream_t stream);

// Names the argument that a launch cannot take.
Status check_strassen(const char* stage, const Layout& layout, int moduli);

}  // namespace ozaki
