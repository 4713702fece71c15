#include "common/scale.h"
#include "launch.h"
#include "launch_bounds.h"
#include "ptx/dependent_launch.cuh"
#include "statistics.cuh"
#include "statistics.h"

namespace ozaki {
namespace {

// The chunks of a tile, to scratch[row][chunk].
__global__ void __launch_bounds__(kTileThreads, resident(kTileThreads, 4))
    chunk_statistics_kernel(const __grid_constant__ Tiling tiling, RowStatistics* scratch,
                            int64_t chunks_per_row) {
  extern __shared__ __align__(16) uint64_t tile[];
  const TilePosition position(tiling, blockIdx.x);
  ptx::wait_for_previous();
  load_tile(tiling, position, tile);
  scratch += position.row * chunks_per_row + position.k / kChunk;
  tile_statistics(tiling, position, tile, [&](int row, int c, const RowStatistics& chunk) {
    if (c * kChunk < position.depth) scratch[row * chunks_per_row + c] = chunk;
  });
}

// The same for an operand that is not contiguous along k, by warps that share nothing: a warp takes a
// chunk of kRows neighbouring rows, whose elements are 64 bytes in memory.
constexpr int kRows = 8, kTileRows = kTileThreads / kWarpLanes * kRows;
constexpr int kSlices = kWarpLanes / kRows, kSlice = kChunk / kSlices;

template <int kParts>
__global__ void __launch_bounds__(kTileThreads, 2)
    strided_chunk_statistics_kernel(const uint64_t* x, const __grid_constant__ Layout layout,
                                    RowStatistics* scratch, uint32_t chunks) {
  // In this order: residues, the next kernel but one, reads x without waiting for this one.
  ptx::wait_for_previous();
  ptx::launch_dependents();
  const uint32_t row_tile = blockIdx.x / chunks, chunk = blockIdx.x - row_tile * chunks;
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  // In memory the parts of an element are neighbours, then rows are.
  const int slice = lane / kParts / kRows * kParts + lane % kParts;
  const int64_t row = int64_t{row_tile} * kTileRows + warp * kRows + lane / kParts % kRows;
  const int64_t h = int64_t{chunk} * kChunk + slice;
  const uint32_t b = static_cast<uint32_t>(row) / static_cast<uint32_t>(layout.rows);
  const bool inside = row < layout.batch * layout.rows;
  const int depth = inside ? static_cast<int>(min(layout.k - h, int64_t{kChunk})) : 0;
  const uint64_t* source = x + layout.offset(b, row - b * layout.rows, h);
  const int64_t stride = kSlices / kParts * layout.stride_k;
  const auto read = [&](int i) { return i * kSlices < depth ? source[i * stride] : 0; };

  uint64_t bits[kSlice];
  if (__all_sync(kWarp, depth > (kSlice - 1) * kSlices)) {
#pragma unroll
    for (int i = 0; i < kSlice; ++i) bits[i] = source[i * stride];
  } else {
#pragma unroll
    for (int i = 0; i < kSlice; ++i) bits[i] = read(i);
  }
  constexpr uint32_t kRowLanes = (kRows - 1) * kParts;
  const RowStatistics statistics = chunk_statistics<kSlice>(
      {(kWarpLanes - 1) & ~kRowLanes}, [&](int i) { return bits[i]; }, read);
  if (slice == 0 && inside) scratch[row * chunks + chunk] = statistics;
}

// A group of lanes a row.
__global__ void __launch_bounds__(kTileThreads, resident(kTileThreads, 5))
    join_statistics_kernel(const uint64_t* x, const __grid_constant__ Layout layout,
                           const RowStatistics* scratch, int chunks, int log2_lanes,
                           int log2_chunks, const ScaleBounds bounds, StatisticsOutputs outputs) {
  ptx::launch_dependents();
  ptx::wait_for_previous();
  const int lanes = 1 << log2_lanes;
  const int64_t row = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) >> log2_lanes;
  const bool inside = row < layout.batch * layout.rows;
  const int count = inside ? chunks : 0;
  scratch += row * chunks;
  const auto chunk = [&](int c) -> const RowStatistics& { return scratch[c]; };
  const RowStatistics statistics = join_chunks(count, lanes, chunk);
  const uint64_t occupancy = join_occupancy(count, lanes, log2_chunks, chunk);
  const uint32_t b = static_cast<uint32_t>(row) / static_cast<uint32_t>(layout.rows);
  const uint64_t* source = x + layout.offset(b, row - b * layout.rows, 0);
  const RowScale scale = group_scale(statistics, bounds, count, lanes, chunk, [&](int64_t h) {
    return h < layout.k ? source[layout.along_k(h)] : 0;
  });
  if (inside && (threadIdx.x & (lanes - 1)) == 0) {
    outputs.scale[row] = scale.mu;
    store_fields(statistics, scale.rounded, occupancy, outputs.stats + row * kStatsFields);
  }
}

int64_t chunks_of(int64_t k) { return (k + kChunk - 1) / kChunk; }

}  // namespace

int64_t scratch_bytes(const Layout& layout) {
  return layout.batch * layout.rows * chunks_of(layout.k) * sizeof(RowStatistics);
}

Status launch_statistics(const double* x, const Layout& layout, const ScaleBounds& bounds,
                         const StatisticsOutputs& outputs, void* scratch, const Device& device,
                         cudaStream_t stream) {
  Tiling tiling;
  make_tiling(x, layout, device, TilePass::kBlocks, tiling);
  RowStatistics* chunk = static_cast<RowStatistics*>(scratch);
  const int64_t chunks = chunks_of(layout.k), rows = layout.batch * layout.rows;
  if (tiling.k_contiguous()) {
    OZAKI_RETURN_IF_ERROR(launch("chunk_statistics_kernel", chunk_statistics_kernel,
                                 {tiling.tiles, kTileThreads, tiling.tile_bytes(), 1, true}, device,
                                 stream, tiling, chunk, chunks));
  } else {
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows * chunks;
    const auto kernel =
        layout.parts == 1 ? strided_chunk_statistics_kernel<1> : strided_chunk_statistics_kernel<2>;
    OZAKI_RETURN_IF_ERROR(launch("strided_chunk_statistics_kernel", kernel,
                                 {tiles, kTileThreads, 0, 1, true}, device, stream, tiling.x,
                                 layout, chunk, static_cast<uint32_t>(chunks)));
  }

  const int log2_lanes = join_log2_lanes(chunks);
  const int64_t blocks = ((rows << log2_lanes) + kTileThreads - 1) / kTileThreads;
  return launch("join_statistics_kernel", join_statistics_kernel,
                {blocks, kTileThreads, 0, 1, true}, device, stream, tiling.x, layout, chunk,
                static_cast<int>(chunks), log2_lanes, log2_chunks_of_part(chunks), bounds, outputs);
}

}  // namespace ozaki
