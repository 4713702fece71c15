#include "common/complex.h"
#include "common/scale.h"
#include "for_each_index.cuh"
#include "launch.h"
#include "operand_tile.cuh"
#include "ptx/dependent_launch.cuh"
#include "quantize_complex.h"
#include "residue_words.cuh"

namespace ozaki {
namespace {

struct ResidueArray {
  uint8_t* data;  // [batch, 2, moduli, rows, kp]
  int moduli;
  int64_t kp;           // padded_k(k), k in elements
  int64_t plane_bytes;  // plane: the residues of a batch element by one modulus and root
};

// What the elements of a row share: the scale, and where the residues begin.
struct RowOfTile {
  uint8_t* residues;
  int32_t scale;
};

// A thread takes four consecutive elements at a time, eight parts.
template <typename Integer, int kMaxModuli>
__device__ __forceinline__ void store_residues(const Tiling& tiling, const TilePosition& position,
                                               const uint64_t* tile, const RowOfTile* rows,
                                               const ResidueArray& residues) {
  constexpr int kElements = 4;
  const int per_row = tiling.octets_per_row.divisor;
  const int used =
      static_cast<int>(min(int64_t{tiling.depth}, 2 * residues.kp - position.k)) / (2 * kElements);
  const int64_t root_bytes = residues.moduli * residues.plane_bytes;
  for (int index = threadIdx.x; index < position.rows * per_row; index += kTileThreads) {
    const int row = tiling.octets_per_row(index), octet = index - row * per_row;
    if (octet >= used) continue;
    const RowOfTile of_row = rows[row];
    const auto* source =
        reinterpret_cast<const ulonglong2*>(tile + row * tiling.pitch + 2 * kElements * octet);
    Integer re[kElements], im[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const ulonglong2 parts = source[e];
      re[e] = Integer(parts.x, of_row.scale);
      im[e] = Integer(parts.y, of_row.scale);
      to_imaginary(im[e].words);
    }
    // Padding is zero to the byte: a residue of 0 may be p.
    const int elements = clamp(position.depth / 2 - kElements * octet, 0, kElements);
    const uint32_t kept = elements == 0 ? 0 : ~0u >> (32 - 8 * elements);
    uint8_t* target = of_row.residues + kElements * octet;
    for_each_index(
        [&](auto index) {
          constexpr int kIndex = decltype(index)::value;
          constexpr Modulus m = kComplexModuli[kIndex];
          constexpr ImaginaryUnit unit = kImaginaryUnits[kIndex];
          uint32_t plus[kElements], minus[kElements];
#pragma unroll
          for (int e = 0; e < kElements; ++e) {
            const RootResidues r = root_residues_float(re[e].words, im[e].words, m, unit);
            plus[e] = r.plus, minus[e] = r.minus;
          }
          *reinterpret_cast<uint32_t*>(target) =
              pack_low_bytes(plus[0], plus[1], plus[2], plus[3]) & kept;
          *reinterpret_cast<uint32_t*>(target + root_bytes) =
              pack_low_bytes(minus[0], minus[1], minus[2], minus[3]) & kept;
          target += residues.plane_bytes;
          return kIndex + 1 < residues.moduli;
        },
        std::make_integer_sequence<int, kMaxModuli>());
  }
}

// Shared memory: the tile and its rows.
template <typename Integer, int kMaxModuli>
__global__ void __launch_bounds__(kTileThreads, 4)
    complex_residues_kernel(const __grid_constant__ Tiling tiling, const int32_t* scale,
                            const ResidueArray residues) {
  extern __shared__ __align__(16) uint64_t tile[];
  RowOfTile* rows = reinterpret_cast<RowOfTile*>(tile + tiling.tile_words());
  const TilePosition position(tiling, blockIdx.x);
  load_tile(tiling, position, tile, [&] {
    ptx::wait_for_previous();  // which made the scales
    if (const int row = threadIdx.x; row < position.rows) {
      const uint32_t g = static_cast<uint32_t>(position.row) + row;  // in the batch
      const uint32_t in_batch = tiling.layout.rows, b = g / in_batch;
      const int64_t before = int64_t{b} * 2 * residues.moduli * in_batch + (g - b * in_batch);
      rows[row] = {residues.data + before * residues.kp + position.k / 2,
                   is_sentinel(scale[g]) ? kScaleZero : scale[g]};
    }
  });
  store_residues<Integer, kMaxModuli>(tiling, position, tile, rows, residues);
}

// early: as in quantize.cu.
Status launch_residues(const double* parts, const Layout& layout, int moduli, const int32_t* scale,
                       uint8_t* residues, bool early, const Device& device, cudaStream_t stream) {
  Tiling tiling;
  make_tiling(parts, layout, device, TilePass::kBlocks, tiling);
  const int64_t kp = padded_k(layout.k / 2);
  const ResidueArray array = {residues, moduli, kp, layout.rows * kp};
  const auto kernel = moduli <= kMaxNarrowComplexModuli
                          ? complex_residues_kernel<Narrow, kMaxNarrowComplexModuli>
                          : complex_residues_kernel<Wide, kMaxComplexModuli>;
  const int bytes = tiling.tile_bytes() + tiling.rows * sizeof(RowOfTile);
  return launch("complex_residues_kernel", kernel, {tiling.tiles, kTileThreads, bytes, 1, early},
                device, stream, tiling, scale, array);
}

}  // namespace

Status launch_residues_complex(const double* parts, const Layout& layout, int moduli,
                               const int32_t* scale, uint8_t* residues, const Device& device,
                               cudaStream_t stream) {
  return launch_residues(parts, layout, moduli, scale, residues, false, device, stream);
}

Status launch_quantize_complex(const double* parts, const Layout& layout, int moduli,
                               const StatisticsOutputs& outputs, uint8_t* residues, void* scratch,
                               const Device& device, cudaStream_t stream) {
  OZAKI_RETURN_IF_ERROR(
      launch_statistics(parts, layout, {kComplexBounds[moduli]}, outputs, scratch, device, stream));
  return launch_residues(parts, layout, moduli, outputs.scale, residues, true, device, stream);
}

}  // namespace ozaki
