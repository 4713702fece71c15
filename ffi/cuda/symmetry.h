// Squares of symmetric matrices are symmetric: half of their tiles are mirror images of the others.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/certificate.h"
#include "common/layout.h"
#include "device.h"

namespace ozaki {

// What the tiles of kTile x kTile outputs of a symmetric product need, uint32 [batch, tiles, tiles]:
// those above the diagonal and on it are computed, the others mirror them. Of any other product
// every tile is computed, from residues of the rhs that are its own.
constexpr uint32_t kComputed = 1, kFromOwnColumns = 2;

// The tile that says whether they are symmetric: that in the lower left corner of the first matrix.
inline int64_t symmetry_flag(int64_t n) { return (tiles_of(n) - 1) * tiles_of(n); }

// Enqueues the tiles of the squares of x on `stream` of `device`, the current one, those of symmetric
// products if all matrices of the batch are symmetric to the bit. `layout` has as many rows as k.
// Allocates nothing, waits for nothing.
Status launch_symmetry(const double* x, const Layout& layout, uint32_t* tiles, const Device& device,
                       cudaStream_t stream);

// Enqueues the mirror images of the computed tiles of c, [batch, n, n], in the place of all others.
Status launch_mirror(double* c, int64_t batch, int64_t n, const uint32_t* tiles,
                     const Device& device, cudaStream_t stream);

}  // namespace ozaki
