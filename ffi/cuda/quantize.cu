#include <type_traits>
#include <utility>

#include "common/quantize.h"
#include "common/scale.h"
#include "quantize.h"
#include "statistics.cuh"

namespace ozaki {
namespace {

struct ResidueArray {
  uint8_t* data;  // [batch, moduli, rows, kp]
  int moduli;
  int64_t kp;           // padded_k(k)
  int64_t plane_bytes;  // plane: the residues of a batch element by one modulus
};

// What the elements of a row share: the scale, and where the residues begin.
struct RowOfTile {
  uint8_t* residues;
  int32_t scale;
};

// A scale that sends every element to zero, and that exponents can be added to.
constexpr int32_t kScaleZero = -(1 << 20);

__device__ __forceinline__ RowOfTile row_of_tile(const Tiling& tiling, const TilePosition& position,
                                                 const ResidueArray& residues, int row,
                                                 int32_t scale) {
  const uint32_t g = static_cast<uint32_t>(position.row) + row;  // in the batch
  const uint32_t rows = tiling.layout.rows, b = g / rows;
  const int64_t before = int64_t{b} * residues.moduli * rows + (g - b * rows);
  return {residues.data + before * residues.kp + position.k,
          is_sentinel(scale) ? kScaleZero : scale};
}

// An element as what its residues are computed from: an integer, offset so that it is not negative,
// in words. This is residue_float of common/residue.h with the offset outside the loop over moduli.
struct Narrow {
  static constexpr int kMaxModuli = kMaxNarrowModuli;
  uint32_t words[2];

  Narrow() = default;
  __device__ __forceinline__ Narrow(uint64_t bits, int32_t scale) {
    const int64_t x = quantize_narrow(bits, scale);
    words[0] = static_cast<uint32_t>(x);
    words[1] = static_cast<uint32_t>(x >> 32) ^ 1u << 31;
  }
  __device__ __forceinline__ uint32_t residue(const Modulus& m) const {
    if (m.p == 256) return words[0];
    const uint32_t sum = dot4(words[1], m.narrow_weights[1], m.narrow_zero);
    return mod_p_float(dot4(words[0], m.narrow_weights[0], sum), m);
  }
};

struct Wide {
  static constexpr int kMaxModuli = ozaki::kMaxModuli;
  uint32_t words[3];

  Wide() = default;
  __device__ __forceinline__ Wide(uint64_t bits, int32_t scale) {
    const Int96 x = quantize_wide(bits, scale);
    words[0] = x.low;
    words[1] = static_cast<uint32_t>(x.high);
    words[2] = static_cast<uint32_t>(x.high >> 32) ^ 1u << 31;
  }
  __device__ __forceinline__ uint32_t residue(const Modulus& m) const {
    if (m.p == 256) return words[0];
    uint32_t sum = dot4(words[2], m.wide_weights[2], m.wide_zero);
    sum = dot4(words[1], m.wide_weights[1], sum);
    return mod_p_float(dot4(words[0], m.wide_weights[0], sum), m);
  }
};

__device__ __forceinline__ uint32_t pack_low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// step(0), step(1), ... with constants, until one returns false.
template <typename Step, int... kIndices>
__device__ __forceinline__ void for_each_modulus(Step step,
                                                 std::integer_sequence<int, kIndices...>) {
  (step(std::integral_constant<int, kIndices>()) && ...);
}

// Quantizes the tile and writes its residues. A thread takes eight consecutive elements at a time.
// The loop over the moduli is unrolled, their constants in its instructions; it ends after the
// last.
template <typename Integer>
__device__ __forceinline__ void store_residues(const Tiling& tiling, const TilePosition& position,
                                               const uint64_t* tile, const RowOfTile* rows,
                                               const ResidueArray& residues) {
  const int per_row = tiling.octets_per_row.divisor;
  const int used = static_cast<int>(min(int64_t{tiling.depth}, residues.kp - position.k)) / 8;
  for (int index = threadIdx.x; index < position.rows * per_row; index += kTileThreads) {
    const int row = tiling.octets_per_row(index), octet = index - row * per_row;
    if (octet >= used) continue;
    const uint64_t* source = tile + row * tiling.pitch + octet;
    const RowOfTile of_row = rows[row];
    Integer x[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = Integer(source[e * tiling.plane], of_row.scale);
    uint8_t* target = of_row.residues + 8 * octet;
    for_each_modulus(
        [&](auto index) {
          constexpr int kIndex = decltype(index)::value;
          constexpr Modulus m = kModuli[kIndex];
          uint32_t r[8];
#pragma unroll
          for (int e = 0; e < 8; ++e) r[e] = x[e].residue(m);
          *reinterpret_cast<uint2*>(target) = {pack_low_bytes(r[0], r[1], r[2], r[3]),
                                               pack_low_bytes(r[4], r[5], r[6], r[7])};
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
}

// Shared memory: the tile, the statistics of its chunks (quantize only), its rows.
__host__ __device__ inline int tile_bytes(const Tiling& tiling) {
  return (tiling.rows * tiling.pitch + 3) / 4 * 4 * sizeof(uint64_t);
}

template <typename Integer>
__global__ void __launch_bounds__(kTileThreads, 5)
    residues_kernel(const __grid_constant__ Tiling tiling, const int32_t* __restrict__ scale,
                    const ResidueArray residues) {
  extern __shared__ __align__(32) uint64_t tile[];
  RowOfTile* rows =
      reinterpret_cast<RowOfTile*>(reinterpret_cast<char*>(tile) + tile_bytes(tiling));
  const TilePosition position(tiling, blockIdx.x);
  if (const int row = threadIdx.x; row < position.rows) {
    rows[row] = row_of_tile(tiling, position, residues, row, scale[position.row + row]);
  }
  load_tile(tiling, position, tile);
  store_residues<Integer>(tiling, position, tile, rows, residues);
}

// Statistics, scales and residues of whole rows.
template <typename Integer>
__global__ void __launch_bounds__(kTileThreads, 3)
    quantize_kernel(const __grid_constant__ Tiling tiling, const Bound bound,
                    const StatisticsOutputs outputs, const ResidueArray residues) {
  extern __shared__ __align__(32) uint64_t tile[];
  RowStatistics* chunks =
      reinterpret_cast<RowStatistics*>(reinterpret_cast<char*>(tile) + tile_bytes(tiling));
  RowOfTile* rows = reinterpret_cast<RowOfTile*>(chunks + tiling.tile_chunks());
  const TilePosition position(tiling, blockIdx.x);
  const int count = tiling.chunks_per_row.divisor;

  load_tile(tiling, position, tile);
  tile_statistics(tiling, position, tile, [&](int row, int c, const RowStatistics& chunk) {
    chunks[row * count + c] = chunk;
  });
  __syncthreads();

  const int log2_lanes = join_log2_lanes(count), lanes = 1 << log2_lanes;
  for (int first = 0; first < position.rows; first += kTileThreads >> log2_lanes) {
    const int row = first + (threadIdx.x >> log2_lanes);
    const bool inside = row < position.rows;
    const RowStatistics statistics =
        join_chunks(inside ? count : 0, lanes,
                    [&](int c) -> const RowStatistics& { return chunks[row * count + c]; });
    if (!inside || (threadIdx.x & (lanes - 1)) != 0) continue;
    const int32_t scale = scale_exponent(statistics, bound);
    rows[row] = row_of_tile(tiling, position, residues, row, scale);
    outputs.scale[position.row + row] = scale;
    store_stats(statistics, outputs.stats + (position.row + row) * kStatsFields);
  }
  __syncthreads();
  store_residues<Integer>(tiling, position, tile, rows, residues);
}

template <typename... Parameters, typename... Arguments>
Status launch_tiles(const char* name, void (*kernel)(Parameters...), const Tiling& tiling,
                    int bytes, const Device& device, cudaStream_t stream,
                    const Arguments&... arguments) {
  // Always the same limit: another thread may be between here and its launch.
  OZAKI_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_bytes_block));
  kernel<<<static_cast<unsigned>(tiling.tiles), kTileThreads, bytes, stream>>>(tiling,
                                                                               arguments...);
  return launch_status(name);
}

ResidueArray residue_array(uint8_t* residues, const Layout& layout, int moduli) {
  const int64_t kp = padded_k(layout.k);
  return {residues, moduli, kp, layout.rows * kp};
}

}  // namespace

Status launch_residues(const double* x, const Layout& layout, int moduli, const int32_t* scale,
                       uint8_t* residues, const Device& device, cudaStream_t stream) {
  Tiling tiling;
  make_tiling(x, layout, device, TilePass::kBlocks, tiling);
  const int bytes = tile_bytes(tiling) + tiling.rows * sizeof(RowOfTile);
  return launch_tiles("residues_kernel",
                      moduli <= kMaxNarrowModuli ? residues_kernel<Narrow> : residues_kernel<Wide>,
                      tiling, bytes, device, stream, scale,
                      residue_array(residues, layout, moduli));
}

Status launch_quantize(const double* x, const Layout& layout, int moduli,
                       const StatisticsOutputs& outputs, uint8_t* residues, void* scratch,
                       const Device& device, cudaStream_t stream) {
  Tiling tiling;
  if (!make_tiling(x, layout, device, TilePass::kWholeRows, tiling)) {
    OZAKI_RETURN_IF_ERROR(launch_statistics(x, layout, moduli, outputs, scratch, device, stream));
    return launch_residues(x, layout, moduli, outputs.scale, residues, device, stream);
  }
  const int bytes = tile_bytes(tiling) + tiling.tile_chunks() * sizeof(RowStatistics) +
                    tiling.rows * sizeof(RowOfTile);
  return launch_tiles("quantize_kernel",
                      moduli <= kMaxNarrowModuli ? quantize_kernel<Narrow> : quantize_kernel<Wide>,
                      tiling, bytes, device, stream, kBounds[moduli], outputs,
                      residue_array(residues, layout, moduli));
}

}  // namespace ozaki
