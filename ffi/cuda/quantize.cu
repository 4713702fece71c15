#include <algorithm>

#include "common/planes.h"
#include "common/scale.h"
#include "for_each_index.cuh"
#include "launch.h"
#include "launch_bounds.h"
#include "needed_range.cuh"
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "quantize.h"
#include "residue_words.cuh"
#include "statistics.cuh"

namespace ozaki {
namespace {

struct ResidueArray {
  uint8_t* data;  // [batch, planes, rows, kp]
  int planes;
  int moduli;           // the planes that are made
  int64_t kp;           // padded_k(k)
  int64_t plane_bytes;  // plane: the residues of a batch element by one modulus
};

// The coarse plane, made in passing: common/planes.h.
struct CoarsePlane {
  uint8_t* data;  // [batch, 1, rows, kq], or nullptr
  uint32_t step;
  uint32_t last;  // the last block of the plane; zeros follow it up to kq
  bool zeros;
  int64_t kq;

  CoarsePlane() = default;
  CoarsePlane(uint8_t* data, const PlaneSubset& subset) : data(data) {
    if (data == nullptr) return;
    const int64_t blocks = round_up(subset.kept(), kPlaneBlock) / kPlaneBlock;
    kq = padded_k(subset.kept());
    step = static_cast<uint32_t>(subset.step);
    last = static_cast<uint32_t>(blocks - 1);
    zeros = !subset.all() && blocks * kPlaneBlock < kq;
  }
};

// What the elements of a row share: the scale, what the coarse plane is relative to, and where the
// residues and that plane begin.
struct RowOfTile {
  uint8_t* residues;
  uint8_t* plane;
  int32_t scale;
  int exponent;
};

__device__ __forceinline__ RowOfTile row_of_tile(const Tiling& tiling, const TilePosition& position,
                                                 const ResidueArray& residues,
                                                 const CoarsePlane& coarse, int row, int32_t scale,
                                                 int exponent) {
  const uint32_t g = static_cast<uint32_t>(position.row) + row;  // in the batch
  const uint32_t rows = tiling.layout.rows, b = g / rows;
  const int64_t before = int64_t{b} * residues.planes * rows + (g - b * rows);
  return {residues.data + before * residues.kp + position.k, coarse.data + g * coarse.kq,
          is_sentinel(scale) ? kScaleZero : scale, is_sentinel(scale) ? kNoPlane : exponent};
}

// The part of the coarse plane that the first `depth` elements of the tile's rows make. A thread
// takes eight consecutive ones at a time, of the blocks that are kept alone.
__device__ __forceinline__ void store_coarse(const TilePosition& position, const Tiling& tiling,
                                             const uint64_t* tile, const RowOfTile* rows,
                                             const CoarsePlane& coarse, uint32_t depth) {
  constexpr uint32_t kBlock = kPlaneBlock, kOctets = kBlock / 8;
  const uint32_t k = position.k, between = coarse.step * kBlock;
  const uint32_t first = (k + between - 1) / between, end = (k + depth + between - 1) / between;
  const uint32_t per_row = (end - first) * kOctets;
  for (uint32_t index = threadIdx.x; index < position.rows * per_row; index += kTileThreads) {
    const uint32_t row = index / per_row, of_row = index - row * per_row;
    const uint32_t block = first + of_row / kOctets, octet = of_row % kOctets;
    const uint32_t h = block * between - k + 8 * octet;
    if (h >= depth) continue;
    const auto* source = reinterpret_cast<const ulonglong2*>(tile + row * tiling.pitch + h);
    uint32_t x[8];
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const ulonglong2 pair = source[e / 2];
      x[e] = coarse_magnitude(pair.x, rows[row].exponent);
      x[e + 1] = coarse_magnitude(pair.y, rows[row].exponent);
    }
    uint2* const target = reinterpret_cast<uint2*>(rows[row].plane + block * kBlock + 8 * octet);
    *target = {pack_low_bytes(x[0], x[1], x[2], x[3]), pack_low_bytes(x[4], x[5], x[6], x[7])};
    if (coarse.zeros && block == coarse.last) target[kOctets] = {0, 0};
  }
}

// Quantizes the tile and writes its residues and its coarse plane. A thread takes eight consecutive
// elements at a time. The loop over the moduli is unrolled, their constants in its instructions; it
// ends after the last.
template <typename Integer>
__device__ __forceinline__ void store_residues(const Tiling& tiling, const TilePosition& position,
                                               const uint64_t* tile, const RowOfTile* rows,
                                               const ResidueArray& residues,
                                               const CoarsePlane& coarse) {
  const int per_row = tiling.octets_per_row.divisor;
  const int used = static_cast<int>(min(int64_t{tiling.depth}, residues.kp - position.k)) / 8;
  // A lane reads 64 bytes: four lanes meet in a bank, or two, if half of them swap pairs of elements.
  const int swapped = threadIdx.x / 2 % 2;
  const uint32_t order = swapped != 0 ? kPairsSwapped : kPairsInOrder;
  for (int index = threadIdx.x; index < position.rows * per_row; index += kTileThreads) {
    const int row = tiling.octets_per_row(index), octet = index - row * per_row;
    if (octet >= used) continue;
    const RowOfTile of_row = rows[row];
    const auto* source = reinterpret_cast<const ulonglong2*>(tile + row * tiling.pitch + 8 * octet);
    Integer x[8];
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const ulonglong2 pair = source[e / 2 ^ swapped];
      x[e] = Integer(pair.x, of_row.scale);
      x[e + 1] = Integer(pair.y, of_row.scale);
    }
    uint8_t* target = of_row.residues + 8 * octet;
    for_each_index(
        [&](auto index) {
          constexpr int kIndex = decltype(index)::value;
          constexpr Modulus m = kModuli[kIndex];
          uint32_t r[8];
#pragma unroll
          for (int e = 0; e < 8; ++e) r[e] = x[e].residue(m);
          *reinterpret_cast<uint2*>(target) = {pack_low_bytes(r[0], r[1], r[2], r[3], order),
                                               pack_low_bytes(r[4], r[5], r[6], r[7], order)};
          target += residues.plane_bytes;
          return kIndex + 1 < residues.moduli;
        },
        std::make_integer_sequence<int, Integer::kMaxModuli>());

    // Padding is zero to the byte: a residue of 0 may be p.
    if (const int elements = position.depth - 8 * octet; elements < 8) {
      const uint64_t kept = elements <= 0 ? 0 : ~uint64_t{0} >> (64 - 8 * elements);
      target = of_row.residues + 8 * octet;
      for (int m = 0; m < residues.moduli; ++m, target += residues.plane_bytes) {
        uint2& word = *reinterpret_cast<uint2*>(target);
        word = {word.x & static_cast<uint32_t>(kept), word.y & static_cast<uint32_t>(kept >> 32)};
      }
    }
  }
  if (coarse.data != nullptr) store_coarse(position, tiling, tile, rows, coarse, 8 * used);
}

// Shared memory: the tile, the statistics of its chunks (quantize only), its rows.
template <typename Integer>
__global__ void __launch_bounds__(kTileThreads, resident(kTileThreads, 5))
    residues_kernel(const __grid_constant__ Tiling tiling, const int32_t* scale,
                    const int64_t* stats, const ResidueArray residues, const CoarsePlane coarse) {
  extern __shared__ __align__(16) uint64_t tile[];
  RowOfTile* rows = reinterpret_cast<RowOfTile*>(tile + tiling.tile_words());
  const TilePosition position(tiling, blockIdx.x);
  load_tile(tiling, position, tile, [&] {
    ptx::wait_for_previous();  // which made the scales
    if (const int row = threadIdx.x; row < position.rows) {
      const int64_t g = position.row + row;
      const int exponent = coarse.data != nullptr
                               ? plane_exponent(load_fields(stats + g * kStatsFields), kCoarseBits)
                               : 0;
      rows[row] = row_of_tile(tiling, position, residues, coarse, row, scale[g], exponent);
    }
  });
  store_residues<Integer>(tiling, position, tile, rows, residues, coarse);
}

// The same for the rows of flagged tiles and the first *count moduli.
template <typename Integer>
__global__ void __launch_bounds__(kTileThreads, resident(kTileThreads, 5))
    flagged_residues_kernel(const __grid_constant__ Tiling tiling,
                            const int32_t* __restrict__ scale, ResidueArray residues,
                            const int32_t* count, const FlaggedTiles flagged, Side side) {
  extern __shared__ __align__(16) uint64_t tile[];
  RowOfTile* rows = reinterpret_cast<RowOfTile*>(tile + tiling.tile_words());
  if (flagged.none(tiling.layout.batch)) return;
  residues.moduli = *count;
  for (int64_t index = blockIdx.x; index < tiling.tiles; index += gridDim.x) {
    const TilePosition position(tiling, index);
    const KRange needed = needed_range(flagged, side, position.row, position.rows,
                                       tiling.layout.rows, tiling.layout.k);
    if (position.k >= needed.end || position.k + tiling.depth <= needed.begin) continue;
    if (const int row = threadIdx.x; row < position.rows) {
      rows[row] = row_of_tile(tiling, position, residues, {}, row, scale[position.row + row], 0);
    }
    load_tile(tiling, position, tile);
    store_residues<Integer>(tiling, position, tile, rows, residues, {});
    __syncthreads();
  }
}

// Statistics, scales and residues of whole rows. The CTAs of a cluster share a row: each has the
// statistics of all its chunks.
template <typename Integer, bool kCluster>
__global__ void __launch_bounds__(kTileThreads, resident(kTileThreads, 5))
    quantize_kernel(const __grid_constant__ Tiling tiling, const ScaleBounds bounds,
                    const StatisticsOutputs outputs, const ResidueArray residues,
                    const CoarsePlane coarse) {
  extern __shared__ __align__(16) uint64_t tile[];
  const int count = tiling.row_chunks;
  RowStatistics* chunks = reinterpret_cast<RowStatistics*>(tile + tiling.tile_words());
  RowOfTile* rows = reinterpret_cast<RowOfTile*>(chunks + tiling.rows * count);
  const TilePosition position(tiling, blockIdx.x);

  if constexpr (kCluster) ptx::cluster_arrive();
  ptx::wait_for_previous();
  ptx::launch_dependents();
  load_tile(tiling, position, tile);
  if constexpr (kCluster) ptx::cluster_wait();  // all have begun
  tile_statistics(tiling, position, tile, [&](int row, int c, const RowStatistics& chunk) {
    if constexpr (kCluster) {
      c += static_cast<int>(position.k / kChunk);
      for (int rank = 0; rank < tiling.depth_tiles && c < count; ++rank) {
        *ptx::in_cta(chunks + row * count + c, rank) = chunk;
      }
    } else {
      chunks[row * count + c] = chunk;
    }
  });
  if constexpr (kCluster) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }

  const int log2_lanes = join_log2_lanes(count), lanes = 1 << log2_lanes;
  for (int first = 0; first < position.rows; first += kTileThreads >> log2_lanes) {
    const int row = first + (threadIdx.x >> log2_lanes);
    const bool inside = row < position.rows;
    const auto chunk = [&](int c) -> const RowStatistics& { return chunks[row * count + c]; };
    const RowStatistics statistics = join_chunks(inside ? count : 0, lanes, chunk);
    const uint64_t occupancy =
        join_occupancy(inside ? count : 0, lanes, log2_chunks_of_part(count), chunk);
    const RowScale scale =
        group_scale(statistics, bounds, inside ? count : 0, lanes, chunk, [&](int h) {
          if constexpr (kCluster) {
            return h < tiling.layout.k
                       ? row_start(tiling, position.row + row)[tiling.layout.along_k(h)]
                       : 0;
          } else {
            return h < tiling.depth ? tile[row * tiling.pitch + h] : 0;
          }
        });
    if (!inside || (threadIdx.x & (lanes - 1)) != 0) continue;
    rows[row] = row_of_tile(tiling, position, residues, coarse, row, scale.mu,
                            plane_exponent(statistics, kCoarseBits));
    if (position.k != 0) continue;
    outputs.scale[position.row + row] = scale.mu;
    store_fields(statistics, scale.rounded, occupancy,
                 outputs.stats + (position.row + row) * kStatsFields);
  }
  __syncthreads();
  store_residues<Integer>(tiling, position, tile, rows, residues, coarse);
}

ResidueArray residue_array(uint8_t* residues, const Layout& layout, int moduli) {
  const int64_t kp = padded_k(layout.k);
  return {residues, moduli, moduli, kp, layout.rows * kp};
}

// early: the kernel before it in the stream made the statistics, and has not changed x.
Status launch_residues(const double* x, const Layout& layout, int moduli, const int32_t* scale,
                       const int64_t* stats, uint8_t* residues, const CoarsePlane& coarse,
                       bool early, const Device& device, cudaStream_t stream) {
  Tiling tiling;
  make_tiling(x, layout, device, TilePass::kBlocks, tiling);
  const int bytes = tiling.tile_bytes() + tiling.rows * sizeof(RowOfTile);
  return launch("residues_kernel",
                moduli <= kMaxNarrowModuli ? residues_kernel<Narrow> : residues_kernel<Wide>,
                {tiling.tiles, kTileThreads, bytes, 1, early}, device, stream, tiling, scale, stats,
                residue_array(residues, layout, moduli), coarse);
}

}  // namespace

Status launch_residues(const double* x, const Layout& layout, int moduli, const int32_t* scale,
                       uint8_t* residues, const Device& device, cudaStream_t stream) {
  return launch_residues(x, layout, moduli, scale, nullptr, residues, CoarsePlane(), false, device,
                         stream);
}

Status launch_flagged_residues(const double* x, const Layout& layout, int planes,
                               const int32_t* scale, const int32_t* count,
                               const FlaggedTiles& flagged, Side side, uint8_t* residues,
                               const Device& device, cudaStream_t stream) {
  Tiling tiling;
  make_tiling(x, layout, device, TilePass::kBlocks, tiling);
  tiling.bulk = false;  // its barrier serves one tile
  const int bytes = tiling.tile_bytes() + tiling.rows * sizeof(RowOfTile);
  const auto kernel =
      planes <= kMaxNarrowModuli ? flagged_residues_kernel<Narrow> : flagged_residues_kernel<Wide>;
  // Seldom is any tile flagged: CTAs that find so are to be few.
  const int64_t ctas = std::min(tiling.tiles, int64_t{8} * device.multiprocessors);
  return launch("flagged_residues_kernel", kernel, {ctas, kTileThreads, bytes}, device, stream,
                tiling, scale, residue_array(residues, layout, planes), count, flagged, side);
}

Status launch_quantize(const double* x, const Layout& layout, int moduli, const ScaleBounds& bounds,
                       const StatisticsOutputs& outputs, uint8_t* residues, uint8_t* coarse_plane,
                       int64_t step, void* scratch, const Device& device, cudaStream_t stream) {
  const CoarsePlane coarse(coarse_plane, {layout.k, step});
  Tiling tiling;
  if (!make_tiling(x, layout, device, TilePass::kWholeRows, tiling)) {
    OZAKI_RETURN_IF_ERROR(launch_statistics(x, layout, bounds, outputs, scratch, device, stream));
    return launch_residues(x, layout, moduli, outputs.scale, outputs.stats, residues, coarse, true,
                           device, stream);
  }
  const int bytes = tiling.tile_bytes() + tiling.rows * tiling.row_chunks * sizeof(RowStatistics) +
                    tiling.rows * sizeof(RowOfTile);
  const bool narrow = moduli <= kMaxNarrowModuli;
  const int cluster = tiling.depth_tiles;
  const auto kernel = cluster == 1
                          ? narrow ? quantize_kernel<Narrow, false> : quantize_kernel<Wide, false>
                      : narrow ? quantize_kernel<Narrow, true>
                               : quantize_kernel<Wide, true>;
  return launch("quantize_kernel", kernel, {tiling.tiles, kTileThreads, bytes, cluster, true},
                device, stream, tiling, bounds, outputs, residue_array(residues, layout, moduli),
                coarse);
}

}  // namespace ozaki
