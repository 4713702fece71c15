#include "common/scale.h"
#include "quantize.h"
#include "residues.cuh"
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

// Quantizes the tile and writes its residues, eight runs a warp at a time. kWholePasses: these are
// neighbours in a row.
template <typename Integer, bool kWholePasses>
__device__ __forceinline__ void store_residues_by(const Tiling& tiling,
                                                  const TilePosition& position,
                                                  const uint64_t* tile, const RowOfTile* rows,
                                                  const ResidueArray& residues,
                                                  const void* buffers) {
  using Buffers = ResidueBuffers<Integer>;
  const LaneModuli* constants = static_cast<const LaneModuli*>(buffers);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t pass =
      ptx::shared_address(buffers) + Buffers::kModuliBytes + warp * Buffers::kPassBytes;
  const int per_row = tiling.runs_per_row.divisor, count = position.rows * per_row;
  const int used = static_cast<int>(min(int64_t{tiling.depth}, residues.kp - position.k)) / kRun;
  for (int first = warp * kRuns; first < count; first += kTileThreads / 32 * kRuns) {
    // Run `run` of the pass, in its row.
    const int first_row = tiling.runs_per_row(first);
    const auto place = [&](int run, int& row, int& of_row) {
      run = kWholePasses ? first + run : min(first + run, count - 1);
      row = kWholePasses ? first_row : tiling.runs_per_row(run);
      of_row = run - row * per_row;
    };
    Integer x[4];
    int row, run;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      place(run_of_lane(lane, half), row, run);
      uint64_t bits[2];
      load_pair(tile + tile_place(tiling, row, run * kRun + element_of_lane(lane)), bits[0],
                bits[1]);
#pragma unroll
      for (int e = 0; e < 2; ++e) x[2 * half + e] = Integer(bits[e], rows[row].scale);
    }
    place(lane / 4, row, run);
    const bool stored = (kWholePasses || first + lane / 4 < count) && run < used;
    uint8_t* target = stored ? rows[row].residues + run * kRun : nullptr;
    store_pass(x, pass, constants, residues.moduli, target, residues.plane_bytes,
               position.depth - run * kRun);
  }
}

template <typename Integer>
__device__ __forceinline__ void store_residues(const Tiling& tiling, const TilePosition& position,
                                               const uint64_t* tile, const RowOfTile* rows,
                                               const ResidueArray& residues, const void* buffers) {
  if (tiling.runs_per_row.divisor % kRuns == 0) {
    store_residues_by<Integer, true>(tiling, position, tile, rows, residues, buffers);
  } else {
    store_residues_by<Integer, false>(tiling, position, tile, rows, residues, buffers);
  }
}

// Shared memory: the tile, buffers for its residues, the statistics of its chunks (quantize only),
// its rows.
__host__ __device__ inline int tile_bytes(const Tiling& tiling) {
  return (tiling.rows * tiling.pitch + 3) / 4 * 4 * sizeof(uint64_t);
}

template <typename Integer>
constexpr int kBufferBytes = ResidueBuffers<Integer>::kModuliBytes +
                             kTileThreads / 32 * ResidueBuffers<Integer>::kPassBytes;

template <typename Integer>
__global__ void __launch_bounds__(kTileThreads, Integer::kUnits < kRun ? 4 : 3)
    residues_kernel(const __grid_constant__ Tiling tiling, const int32_t* __restrict__ scale,
                    const ResidueArray residues) {
  extern __shared__ __align__(32) uint64_t tile[];
  char* buffers = reinterpret_cast<char*>(tile) + tile_bytes(tiling);
  RowOfTile* rows = reinterpret_cast<RowOfTile*>(buffers + kBufferBytes<Integer>);
  const TilePosition position(tiling, blockIdx.x);
  fill_lane_moduli<Integer>(reinterpret_cast<LaneModuli*>(buffers), residues.moduli);
  if (const int row = threadIdx.x; row < position.rows) {
    rows[row] = row_of_tile(tiling, position, residues, row, scale[position.row + row]);
  }
  load_tile(tiling, position, tile);
  store_residues<Integer>(tiling, position, tile, rows, residues, buffers);
}

// Statistics, scales and residues of whole rows.
template <typename Integer>
__global__ void __launch_bounds__(kTileThreads, 3)
    quantize_kernel(const __grid_constant__ Tiling tiling, const Bound bound,
                    const StatisticsOutputs outputs, const ResidueArray residues) {
  extern __shared__ __align__(32) uint64_t tile[];
  char* buffers = reinterpret_cast<char*>(tile) + tile_bytes(tiling);
  RowStatistics* chunks = reinterpret_cast<RowStatistics*>(buffers + kBufferBytes<Integer>);
  RowOfTile* rows = reinterpret_cast<RowOfTile*>(chunks + tiling.tile_chunks());
  const TilePosition position(tiling, blockIdx.x);
  const int count = tiling.chunks_per_row.divisor;

  fill_lane_moduli<Integer>(reinterpret_cast<LaneModuli*>(buffers), residues.moduli);
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
  store_residues<Integer>(tiling, position, tile, rows, residues, buffers);
}

// Launches kernel<Integer> with `bytes` of shared memory beside the tile and the buffers.
template <typename Integer, typename... Parameters, typename... Arguments>
Status launch_tiles(const char* name, void (*kernel)(Parameters...), const Tiling& tiling,
                    int bytes, const Device& device, cudaStream_t stream,
                    const Arguments&... arguments) {
  // Always the same limit: another thread may be between here and its launch.
  OZAKI_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_bytes_block));
  bytes += tile_bytes(tiling) + kBufferBytes<Integer>;
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
  const auto launch = [&]<typename Integer>(Integer) {
    const int bytes = tiling.rows * sizeof(RowOfTile);
    return launch_tiles<Integer>("residues_kernel", residues_kernel<Integer>, tiling, bytes, device,
                                 stream, scale, residue_array(residues, layout, moduli));
  };
  return moduli <= kMaxNarrowModuli ? launch(Narrow()) : launch(Wide());
}

Status launch_quantize(const double* x, const Layout& layout, int moduli,
                       const StatisticsOutputs& outputs, uint8_t* residues, void* scratch,
                       const Device& device, cudaStream_t stream) {
  Tiling tiling;
  if (!make_tiling(x, layout, device, TilePass::kWholeRows, tiling)) {
    OZAKI_RETURN_IF_ERROR(launch_statistics(x, layout, moduli, outputs, scratch, device, stream));
    return launch_residues(x, layout, moduli, outputs.scale, residues, device, stream);
  }
  const auto launch = [&]<typename Integer>(Integer) {
    const int bytes =
        tiling.tile_chunks() * sizeof(RowStatistics) + tiling.rows * sizeof(RowOfTile);
    return launch_tiles<Integer>("quantize_kernel", quantize_kernel<Integer>, tiling, bytes, device,
                                 stream, kBounds[moduli], outputs,
                                 residue_array(residues, layout, moduli));
  };
  return moduli <= kMaxNarrowModuli ? launch(Narrow()) : launch(Wide());
}

}  // namespace ozaki
