#include <string>

#include "certify.h"
#include "common/layout.h"
#include "device.h"

namespace ozaki {
namespace {

// A CTA a tile of outputs. A warp takes a row of the tile, a lane four columns of it: the bounds of
// its columns stay in registers.
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kColumns = 4;
static_assert(32 * kColumns == kTile && 2 * kTile == kThreads);

struct TileOfOutputs {
  int64_t batch, first_row, first_column, np;
  int height, width;

  __device__ __forceinline__ TileOfOutputs(const Certify& args, uint32_t tiles_m,
                                           uint32_t tiles_n) {
    const uint32_t row_tile = blockIdx.x / tiles_n, tile_n = blockIdx.x - row_tile * tiles_n;
    batch = row_tile / tiles_m;
    first_row = (row_tile - static_cast<uint32_t>(batch) * tiles_m) * kTile;
    first_column = tile_n * kTile;
    np = padded(args.n);
    height = static_cast<int>(min(kTile, args.m - first_row));
    width = static_cast<int>(min(kTile, args.n - first_column));
  }
};

// The largest ratio so far, of which few can be the next: the others need no division.
__device__ __forceinline__ void keep_worst(float& worst, const Certificate& by) {
  if (by.error > 0.999f * worst * by.scale) worst = fmaxf(worst, by.ratio());
}

// Joins what the warps have found in a tile, of which `skipped` is known.
__device__ __forceinline__ void store_tile(const Certify& args, uint32_t set, uint32_t skipped,
                                           float worst) {
  __shared__ uint32_t sets[kWarps], worsts[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Floats that are not negative are in the order of their bits.
  const uint32_t largest = __reduce_max_sync(~0u, __float_as_uint(worst));
  set = __reduce_or_sync(~0u, set);
  if (lane == 0) sets[warp] = set, worsts[warp] = largest;
  __syncthreads();
  if (threadIdx.x >= kWarps) return;
  constexpr uint32_t kLanes = (1u << kWarps) - 1;
  set = __reduce_or_sync(kLanes, sets[threadIdx.x]);
  const uint32_t ratio = __reduce_max_sync(kLanes, worsts[threadIdx.x]);
  if (threadIdx.x == 0) {
    args.tiles[blockIdx.x] = set | skipped;
    args.worst[blockIdx.x] = __uint_as_float(ratio);
  }
}

// Not written by the kernel that asks: the load may be moved.
__device__ __forceinline__ RowBound load_bound(const RowBound* source) {
  const float4 x = __ldg(reinterpret_cast<const float4*>(source));
  return {x.x, x.y, x.z, x.w};
}

__device__ __forceinline__ uint64_t reduce_or(uint64_t x) {
  const uint32_t low = __reduce_or_sync(~0u, static_cast<uint32_t>(x));
  return uint64_t{__reduce_or_sync(~0u, static_cast<uint32_t>(x >> 32))} << 32 | low;
}

// What rows, or columns, bring to the certificates of the coarse planes: kTile of them for every
// tile, those beyond the last bring no error.
struct TileBounds {
  RowBound* bound;
  uint64_t* occupancy;
  TileOccupancy* of_tile;
};

// A CTA a tile's rows, then a tile's columns.
__global__ void __launch_bounds__(kTile)
    bounds_kernel(const __grid_constant__ Certify args, const TileBounds bounds, uint32_t tiles_m,
                  uint32_t tiles_n) {
  __shared__ uint64_t any[kTile / 32], missing[kTile / 32];
  const uint32_t row_tiles = static_cast<uint32_t>(args.batch) * tiles_m;
  const bool is_row = blockIdx.x < row_tiles;
  const CertifiedRows& source = is_row ? args.rows : args.columns;
  const int64_t rows = is_row ? args.m : args.n;
  const uint32_t tile = is_row ? blockIdx.x : blockIdx.x - row_tiles;
  const uint32_t batch = tile / (is_row ? tiles_m : tiles_n);
  const int64_t row = (tile - int64_t{batch} * (is_row ? tiles_m : tiles_n)) * kTile + threadIdx.x;
  RowBound bound = {0, 0, 1, 0};  // of no row: certified
  uint64_t occupancy = 0, lacking = 0;
  if (row < rows) {
    const int64_t at = batch * rows + row;
    const int64_t* const stats = source.stats + at * kStatsFields;
    bound = row_bound(stats, source.scale[at], kCoarseBits);
    occupancy = occupancy_of(stats);
    lacking = ~occupancy;
  }
  const int64_t target = int64_t{blockIdx.x} * kTile + threadIdx.x;
  bounds.bound[target] = bound;
  bounds.occupancy[target] = occupancy;
  occupancy = reduce_or(occupancy), lacking = reduce_or(lacking);
  if (threadIdx.x % 32 == 0) {
    any[threadIdx.x / 32] = occupancy;
    missing[threadIdx.x / 32] = lacking;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  TileOccupancy all = {};
#pragma unroll
  for (int w = 0; w < kTile / 32; ++w) all.any |= any[w], all.missing |= missing[w];
  bounds.of_tile[blockIdx.x] = all;
}

// The coarse planes decide every output. The sums of kBatch rows are on their way while others are
// looked at.
__global__ void __launch_bounds__(kThreads, 3)
    certify_kernel(const __grid_constant__ Certify args, const TileBounds bounds, uint32_t tiles_m,
                   uint32_t tiles_n) {
  constexpr int kBatch = 4, kRounds = kTile / kWarps / kBatch;
  const TileOfOutputs tile(args, tiles_m, tiles_n);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = tile.first_column + lane * kColumns;
  const int64_t first = (tile.batch * args.m + tile.first_row) * tile.np + column;
  int4 sum[kBatch];
  const auto load = [&](int round) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = (round * kBatch + i) * kWarps + warp;
      sum[i] = row < tile.height && column < tile.np
                   ? __ldcs(reinterpret_cast<const int4*>(args.sums + first + row * tile.np))
                   : int4{};
    }
  };
  load(0);
  const uint32_t row_tile = blockIdx.x / tiles_n;
  const uint32_t column_tile = static_cast<uint32_t>(args.batch) * tiles_m +
                               static_cast<uint32_t>(tile.batch) * tiles_n + blockIdx.x -
                               row_tile * tiles_n;
  const TileOccupancy of_rows = bounds.of_tile[row_tile], of_columns = bounds.of_tile[column_tile];
  const bool full = ((of_rows.missing | of_columns.missing) & full_occupancy(args.k)) == 0;
  const float part = static_cast<float>(part_length(args.k));
  RowBound columns[kColumns];
  uint64_t column_occupancy[kColumns];
#pragma unroll
  for (int e = 0; e < kColumns; ++e) {
    const int64_t at = int64_t{column_tile} * kTile + lane * kColumns + e;
    columns[e] = load_bound(bounds.bound + at);
    if (!full) column_occupancy[e] = __ldg(bounds.occupancy + at);
  }
  // The bytes of columns that there are.
  const int inside = min(max(tile.width - lane * kColumns, 0), kColumns);
  const uint32_t mask = inside == 0 ? 0 : ~0u >> (8 * (kColumns - inside));

  uint32_t undecided = 0, certified = 0;
  float worst = 0;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (round > 0) load(round);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = (round * kBatch + i) * kWarps + warp;
      if (row >= tile.height || column >= tile.np) break;
      const int64_t of_tile = int64_t{row_tile} * kTile + row;
      const RowBound of_row = load_bound(bounds.bound + of_tile);
      const int32_t of_column[kColumns] = {sum[i].x, sum[i].y, sum[i].z, sum[i].w};
      uint32_t word = 0;
      if (full) {
#pragma unroll
        for (int e = 0; e < kColumns; ++e) {
          const Decision decision = decide(of_row, columns[e], of_column[e], args.tau_half);
          word |= uint32_t{decision.rung} << (8 * e);
          keep_worst(worst, decision.by);
        }
      } else {
        const uint64_t row_occupancy = __ldg(bounds.occupancy + of_tile);
#pragma unroll
        for (int e = 0; e < kColumns; ++e) {
          const float shared = overlap(row_occupancy, column_occupancy[e], part);
          const Decision decision = decide(within(shared, of_row), within(shared, columns[e]),
                                           of_column[e], args.tau_half);
          word |= uint32_t{decision.rung} << (8 * e);
          keep_worst(worst, decision.by);
        }
      }
      word &= mask;
      certified |= word;
      undecided |= ~word & mask & 0x01010101u;
      *reinterpret_cast<uint32_t*>(args.rung + first + row * tile.np) = word;
    }
  }
  static_assert(kUndecided == 0 && kCoarse == 1);
  const uint32_t set =
      (undecided != 0 ? 1u << kUndecided : 0) | (certified != 0 ? 1u << kCoarse : 0);
  store_tile(args, set, skips(of_rows.any & of_columns.any), worst);
}

// What an output's row or column brings, at the first scales and at the wide ones.
struct Bounds {
  RowBound narrow, wide;
  uint64_t occupancy;

  __device__ __forceinline__ static Bounds of(const CertifiedRows& rows, int64_t row) {
    const int64_t* const stats = rows.stats + row * kStatsFields;
    return {row_bound(stats, rows.scale[row], kFineBits),
            row_bound(stats, rows.wide_scale[row], kFineBits), occupancy_of(stats)};
  }
};

// The fine planes decide what the coarse ones left.
__global__ void __launch_bounds__(kThreads)
    certify_fine_kernel(const __grid_constant__ Certify args, uint32_t tiles_m, uint32_t tiles_n) {
  __shared__ Bounds rows[kTile], columns_of[kTile];
  const uint32_t known = args.tiles[blockIdx.x];
  if ((known >> kUndecided & 1) == 0) {
    if (threadIdx.x == 0) args.worst[blockIdx.x] = 0;
    return;
  }
  const TileOfOutputs tile(args, tiles_m, tiles_n);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = tile.first_column + lane * kColumns;
  const int place = threadIdx.x % kTile;
  if (threadIdx.x < kTile && place < tile.height) {
    rows[place] = Bounds::of(args.rows, tile.batch * args.m + tile.first_row + place);
  } else if (threadIdx.x >= kTile && place < tile.width) {
    columns_of[place] = Bounds::of(args.columns, tile.batch * args.n + tile.first_column + place);
  }
  __syncthreads();
  Bounds columns[kColumns];
#pragma unroll
  for (int e = 0; e < kColumns; ++e) columns[e] = columns_of[lane * kColumns + e];

  uint32_t set = 0;
  float worst = 0;
  const float part = static_cast<float>(part_length(args.k));
  const int64_t plane = args.m * tile.np;
  const int64_t first = (tile.batch * args.m + tile.first_row) * tile.np + column;
  const int32_t* const sums = args.sums + tile.batch * (kFinePlanes - 1) * plane + first;
  for (int row = warp; row < tile.height && column < tile.np; row += kWarps) {
    uint32_t* const target = reinterpret_cast<uint32_t*>(args.rung + first + row * tile.np);
    const uint32_t earlier = *target;
    int32_t sum[kFinePlanes][kColumns];
#pragma unroll
    for (int p = 0; p < kFinePlanes; ++p) {
      const int32_t* const source = sums + p * plane + row * tile.np;
      const int4 x = __ldcs(reinterpret_cast<const int4*>(source));
      sum[p][0] = x.x, sum[p][1] = x.y, sum[p][2] = x.z, sum[p][3] = x.w;
    }
    uint32_t word = 0;
#pragma unroll
    for (int e = 0; e < kColumns; ++e) {
      if (column + e >= args.n) break;
      uint32_t rung = earlier >> (8 * e) & 255;
      if (rung == kUndecided) {
        const float shared = overlap(rows[row].occupancy, columns[e].occupancy, part);
        const Decision decision =
            decide(within(shared, rows[row].narrow), within(shared, columns[e].narrow),
                   within(shared, rows[row].wide), within(shared, columns[e].wide),
                   {sum[0][e], sum[1][e], sum[2][e], sum[3][e]}, args.all_k, args.tau_half);
        rung = decision.rung;
        keep_worst(worst, decision.by);
      }
      set |= 1u << rung;
      word |= rung << (8 * e);
    }
    *target = word;
  }
  store_tile(args, set, known - rungs_of(known), worst);
}

}  // namespace

Status launch_certify(const Certify& certify, void* scratch, cudaStream_t stream) {
  const int64_t tiles_m = tiles_of(certify.m), tiles_n = tiles_of(certify.n);
  const int64_t tiles = certify.batch * tiles_m * tiles_n;
  if (tiles > INT32_MAX) return Status("certify: more than 2^31 tiles of outputs");
  const int64_t of_rows = certify.batch * (tiles_m + tiles_n);
  RowBound* const bound = static_cast<RowBound*>(scratch);
  uint64_t* const occupancy = reinterpret_cast<uint64_t*>(bound + of_rows * kTile);
  const TileBounds bounds = {bound, occupancy,
                             reinterpret_cast<TileOccupancy*>(occupancy + of_rows * kTile)};
  const uint32_t rows = static_cast<uint32_t>(tiles_m), columns = static_cast<uint32_t>(tiles_n);
  bounds_kernel<<<static_cast<unsigned>(of_rows), kTile, 0, stream>>>(certify, bounds, rows,
                                                                      columns);
  OZAKI_RETURN_IF_ERROR(launch_status("bounds_kernel"));
  certify_kernel<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(certify, bounds, rows,
                                                                        columns);
  return launch_status("certify_kernel");
}

Status launch_certify_fine(const Certify& certify, cudaStream_t stream) {
  const int64_t tiles_m = tiles_of(certify.m), tiles_n = tiles_of(certify.n);
  const int64_t tiles = certify.batch * tiles_m * tiles_n;
  if (tiles > INT32_MAX) return Status("certify: more than 2^31 tiles of outputs");
  certify_fine_kernel<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(
      certify, static_cast<uint32_t>(tiles_m), static_cast<uint32_t>(tiles_n));
  return launch_status("certify_fine_kernel");
}

}  // namespace ozaki
