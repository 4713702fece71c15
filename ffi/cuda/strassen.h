// One level of Strassen-Winograd around the grouped product: seven products of quarters in place of
// eight. Sums of quarters are formed of the integers A', B' that the residues stand for, and sums
// of products modulo p, so that every step is exact and C is that of the plain stages to the bit.
//
// With quarters A11 ... B22 (rows, columns and k split at the half, rounded up, zeros in the place
// of what an odd extent lacks), P_j = S_j T_j and U = P0 + P5:
//
//   j  S_j of A    T_j of B
//   0  A11         B11
//   1  A12         B21          C11 = P0 + P1
//   2  A12 - S5    B22          C12 = U + P4 + P2
//   3  A22         B21 - T5     C21 = U + P6 + P3
//   4  A21 + A22   B12 - B11    C22 = U + P6 + P4
//   5  A22 + S6    B22 - T4
//   6  A21 - A11   B12 - B22
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "combine.h"
#include "common/layout.h"
#include "device.h"

namespace ozaki {

constexpr int kStrassenProducts = 7;
// S_j and T_j, up to four times A', fit 64 bits up to here.
constexpr int kMaxStrassenModuli = 15;

// Extents of a quarter.
OZAKI_HD int64_t strassen_half(int64_t extent) { return (extent + 1) / 2; }
// The contraction length of the seven products: half of k, padded to whole cache lines with numbers
// that are 0 modulo p.
OZAKI_HD int64_t strassen_depth(int64_t k) { return round_up(strassen_half(k), kLineBytes); }

enum class StrassenSide { kLhs, kRhs };

// Enqueues the residues of S_j (lhs) or T_j (rhs) on `stream` of `device`, the current one, from
// the rows of an operand and their scales, [batch, rows]. Rows are those of A or the columns of B.
//   residues: [batch, 7, moduli, strassen_half(rows), strassen_depth(k)],
// which launch_grouped_mma multiplies as a batch of 7 batch. Allocates nothing, waits for nothing.
Status launch_strassen_quantize(const double* x, const Layout& layout, StrassenSide side,
                                int moduli, const int32_t* scale, uint8_t* residues,
                                const Device& device, cudaStream_t stream);

// launch_combine for the residues of the seven products,
//   combine.v: [batch, 7, moduli, strassen_half(m), strassen_half(n) padded to 16].
Status launch_strassen_combine(const Combine& combine, int moduli, const Device& device,
                               cudaStream_t stream);

// Names the argument that a launch cannot take.
Status check_strassen(const char* stage, const Layout& layout, int moduli);

}  // namespace ozaki
