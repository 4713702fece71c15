#include <string>

#include "certify.h"
#include "common/layout.h"
#include "flagged_walk.cuh"
#include "launch.h"
#include "launch_bounds.h"
#include "ptx/dependent_launch.cuh"

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

  __device__ __forceinline__ TileOfOutputs(const Certify& args, uint32_t index, uint32_t tiles_m,
                                           uint32_t tiles_n) {
    const uint32_t row_tile = index / tiles_n, tile_n = index - row_tile * tiles_n;
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
__device__ __forceinline__ void store_tile(const Certify& args, uint32_t index, uint32_t set,
                                           uint32_t skipped, float worst) {
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
    args.tiles[index] = set | skipped;
    args.worst[index] = __uint_as_float(ratio);
  }
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
  TileRows* of_tile;
};

__device__ __forceinline__ LogNorms larger(LogNorms x, LogNorms y) {
  return {max(x.first, y.first), max(x.wide, y.wide)};
}

__device__ __forceinline__ LogNorms reduce_max(LogNorms x) {
  return {__reduce_max_sync(~0u, x.first), __reduce_max_sync(~0u, x.wide)};
}

// A CTA a tile's rows, then a tile's columns.
__global__ void __launch_bounds__(kTile)
    bounds_kernel(const __grid_constant__ Certify args, const __grid_constant__ RungLimits limits,
                  const ModulusCounts counts, const TileBounds bounds, uint32_t tiles_m,
                  uint32_t tiles_n) {
  ptx::launch_dependents();
  if (blockIdx.x == 0 && threadIdx.x == 0) *counts.first = *counts.wide = kMinModuli;
  __shared__ TileRows of_warp[kTile / 32];
  const uint32_t row_tiles = static_cast<uint32_t>(args.batch) * tiles_m;
  const bool is_row = blockIdx.x < row_tiles;
  const CertifiedRows& source = is_row ? args.rows : args.columns;
  const int64_t rows = is_row ? args.m : args.n;
  const uint32_t tile = is_row ? blockIdx.x : blockIdx.x - row_tiles;
  const uint32_t batch = tile / (is_row ? tiles_m : tiles_n);
  const int64_t row = (tile - int64_t{batch} * (is_row ? tiles_m : tiles_n)) * kTile + threadIdx.x;
  RowBound bound = {0, 0, 1, 0};  // of no row: certified
  TileRows own = {0, 0, {kNoNorm, kNoNorm}};
  if (row < rows) {
    const int64_t at = batch * rows + row;
    const int64_t* const stats = source.stats + at * kStatsFields;
    const int32_t scale = source.scale[at];
    const WideRow wide = wide_row(load_fields(stats), scale, limits);
    source.wide_scale[at] = wide.scale;
    bound = row_bound(stats, scale, kCoarseBits);
    own = {occupancy_of(stats), ~occupancy_of(stats), wide.norms};
  }
  const int64_t target = int64_t{blockIdx.x} * kTile + threadIdx.x;
  bounds.bound[target] = bound;
  bounds.occupancy[target] = own.any;
  own = {reduce_or(own.any), reduce_or(own.missing), reduce_max(own.largest)};
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int w = 1; w < kTile / 32; ++w) {
    const TileRows other = of_warp[w];
    own = {own.any | other.any, own.missing | other.missing, larger(own.largest, other.largest)};
  }
  bounds.of_tile[blockIdx.x] = own;
}

// The moduli that one batch element needs, by a warp: from its tiles' rows and columns.
__device__ __forceinline__ void count_moduli(const RungLimits& limits, const ModulusCounts& counts,
                                             const TileRows* rows, const TileRows* columns,
                                             uint32_t tiles_m, uint32_t tiles_n) {
  const auto largest = [](const TileRows* of_tile, uint32_t tiles) {
    LogNorms norms = {kNoNorm, kNoNorm};
    for (uint32_t i = threadIdx.x % 32; i < tiles; i += 32) {
      norms = larger(norms, of_tile[i].largest);
    }
    return reduce_max(norms);
  };
  const LogNorms row = largest(rows, tiles_m), column = largest(columns, tiles_n);
  if (threadIdx.x % 32 == 0) {
    const RungModuli& moduli = counts.moduli;
    atomicMax(counts.first, modulus_count(row.first + column.first, moduli.first, limits));
    atomicMax(counts.wide, modulus_count(row.wide + column.wide, moduli.wide, limits));
  }
}

// What the outputs of a tile share.
struct SharedTile {
  RowBound bound[2][kTile];  // of its rows, of its columns
  uint64_t occupancy[2][kTile];
  bool full;   // every row and every column has nonzeros in all parts of k
  float part;  // the length of these
  float first_worst[kWarps];
};

// The rungs of four outputs of a row, and the bits of the largest ratio among them and `worst`.
__device__ __forceinline__ uint2 decide_four(const SharedTile& tile, int row, int column, int4 sums,
                                             float tau_half, float worst) {
  const int32_t of_column[kColumns] = {sums.x, sums.y, sums.z, sums.w};
  uint32_t word = 0;
#pragma unroll
  for (int e = 0; e < kColumns; ++e) {
    RowBound of_row = tile.bound[0][row], of_other = tile.bound[1][column + e];
    if (!tile.full) {
      const float shared =
          overlap(tile.occupancy[0][row], tile.occupancy[1][column + e], tile.part);
      of_row = within(shared, of_row), of_other = within(shared, of_other);
    }
    const Decision decision = decide(of_row, of_other, of_column[e], tau_half);
    word |= uint32_t{decision.rung} << (8 * e);
    keep_worst(worst, decision.by);
  }
  return make_uint2(word, __float_as_uint(worst));
}

// The coarse planes decide every output. A warp takes a row at a time, while the sums of the next
// kAhead ones are on their way. Most outputs have a smaller ratio than one of the warps' first rows,
// and need not know it.
__global__ void __launch_bounds__(kThreads, resident(kThreads, 4))
    certify_kernel(const __grid_constant__ Certify args, const __grid_constant__ RungLimits limits,
                   const ModulusCounts counts, const TileBounds bounds, uint32_t tiles_m,
                   uint32_t tiles_n) {
  constexpr int kAhead = 3;
  constexpr uint32_t kAllCoarse = 0x01010101u * kCoarse;
  static_assert(kUndecided == 0 && kCoarse == 1);
  __shared__ SharedTile shared;
  const TileOfOutputs tile(args, blockIdx.x, tiles_m, tiles_n);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = tile.first_column + lane * kColumns;
  const int height = column < tile.np ? tile.height : 0;  // of this lane's columns
  const int64_t step = kWarps * tile.np;                  // from a row to the next
  int64_t at = (tile.batch * args.m + tile.first_row + warp) * tile.np + column;
  const auto load = [&](int row, int64_t at) {
    const int4* const source = reinterpret_cast<const int4*>(args.sums + at);
    return row < height ? __ldcs(source) : int4{};
  };
  int4 sums[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) sums[i] = load(i * kWarps + warp, at + i * step);

  ptx::wait_for_previous();  // which made the bounds
  const uint32_t row_tile = blockIdx.x / tiles_n;
  const uint32_t column_tile = static_cast<uint32_t>(args.batch) * tiles_m +
                               static_cast<uint32_t>(tile.batch) * tiles_n + blockIdx.x -
                               row_tile * tiles_n;
  const TileRows &of_rows = bounds.of_tile[row_tile], &of_columns = bounds.of_tile[column_tile];
  if (tile.first_row == 0 && tile.first_column == 0 && warp == 0) {
    count_moduli(limits, counts, &of_rows, &of_columns, tiles_m, tiles_n);
  }
  const int side = threadIdx.x / kTile, place = threadIdx.x % kTile;
  const int64_t source = int64_t{side == 0 ? row_tile : column_tile} * kTile + place;
  shared.bound[side][place] = bounds.bound[source];
  shared.occupancy[side][place] = bounds.occupancy[source];
  if (threadIdx.x == 0) {
    shared.full = ((of_rows.missing | of_columns.missing) & full_occupancy(args.k)) == 0;
    shared.part = static_cast<float>(part_length(args.k));
  }
  __syncthreads();
  RowBound columns[kColumns];
#pragma unroll
  for (int e = 0; e < kColumns; ++e) columns[e] = shared.bound[1][lane * kColumns + e];
  // The bytes of columns that there are.
  const int inside = min(max(tile.width - lane * kColumns, 0), kColumns);
  const uint32_t mask = inside == 0 ? 0 : kAllCoarse >> (8 * (kColumns - inside));

  // Floats that are not negative are in the order of their bits.
  const auto largest = [](uint32_t bits) { return __uint_as_float(__reduce_max_sync(~0u, bits)); };
  shared.first_worst[warp] =
      largest(decide_four(shared, warp, lane * kColumns, sums[0], args.tau_half, 0).y);
  __syncthreads();
  float worst = largest(__float_as_uint(shared.first_worst[lane % kWarps]));
  uint32_t seen = 0;  // in bytes: bit 0 of certified outputs, bit 1 of undecided ones
#pragma unroll 1
  for (int round = warp; round < tile.height; round += kAhead * kWarps) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = round + i * kWarps;
      if (row >= tile.height) break;
      const Below below(worst, args.tau_half);
      const RowBound of_row = shared.bound[0][row];
      const bool clear = below.holds(of_row, columns[0], static_cast<float>(sums[i].x)) &
                         below.holds(of_row, columns[1], static_cast<float>(sums[i].y)) &
                         below.holds(of_row, columns[2], static_cast<float>(sums[i].z)) &
                         below.holds(of_row, columns[3], static_cast<float>(sums[i].w));
      uint32_t word = mask;
      if (!__all_sync(~0u, clear)) {
        const uint2 found =
            decide_four(shared, row, lane * kColumns, sums[i], args.tau_half, worst);
        word &= found.x;
        seen |= (word ^ mask) << 1;
        worst = largest(found.y);
      }
      seen |= word;
      if (row < height) *reinterpret_cast<uint32_t*>(args.rung + at) = word;
      sums[i] = load(row + kAhead * kWarps, at + kAhead * step);
      at += step;
    }
  }
  const uint32_t set = ((seen & kAllCoarse) != 0 ? 1u << kCoarse : 0) |
                       ((seen & kAllCoarse << 1) != 0 ? 1u << kUndecided : 0);
  store_tile(args, blockIdx.x, set, skips(of_rows.any & of_columns.any), worst);
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

// The fine planes decide what the coarse ones left in a tile.
__device__ __forceinline__ void certify_fine_tile(const Certify& args, uint32_t index,
                                                  uint32_t tiles_m, uint32_t tiles_n) {
  __shared__ Bounds rows[kTile], columns_of[kTile];
  const uint32_t known = args.tiles[index];
  const TileOfOutputs tile(args, index, tiles_m, tiles_n);
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
  store_tile(args, index, set, known - rungs_of(known), worst);
}

__global__ void __launch_bounds__(kThreads)
    certify_fine_kernel(const __grid_constant__ Certify args, uint32_t tiles_m, uint32_t tiles_n) {
  const int64_t tiles = args.batch * tiles_m * tiles_n;
  for_flagged<kThreads>(
      tiles,
      [&](int64_t index) {
        const bool open = (args.tiles[index] >> kUndecided & 1) != 0;
        if (!open) args.worst[index] = 0;
        return open;
      },
      [&](int64_t index) {
        certify_fine_tile(args, static_cast<uint32_t>(index), tiles_m, tiles_n);
      });
}

}  // namespace

Status launch_certify(const Certify& certify, const ModulusCounts& counts, void* scratch,
                      const Device& device, cudaStream_t stream) {
  const int64_t tiles_m = tiles_of(certify.m), tiles_n = tiles_of(certify.n);
  const int64_t tiles = certify.batch * tiles_m * tiles_n;
  if (tiles > INT32_MAX) return Status("certify: more than 2^31 tiles of outputs");
  const int64_t of_rows = certify.batch * (tiles_m + tiles_n);
  RowBound* const bound = static_cast<RowBound*>(scratch);
  uint64_t* const occupancy = reinterpret_cast<uint64_t*>(bound + of_rows * kTile);
  const TileBounds bounds = {bound, occupancy,
                             reinterpret_cast<TileRows*>(occupancy + of_rows * kTile)};
  const RungLimits limits = RungLimits::of(counts.moduli);
  const uint32_t rows = static_cast<uint32_t>(tiles_m), columns = static_cast<uint32_t>(tiles_n);
  OZAKI_RETURN_IF_ERROR(launch("bounds_kernel", bounds_kernel, {of_rows, kTile}, device, stream,
                               certify, limits, counts, bounds, rows, columns));
  // Early: the sums were there before the bounds.
  return launch("certify_kernel", certify_kernel, {tiles, kThreads, 0, 1, true}, device, stream,
                certify, limits, counts, bounds, rows, columns);
}

Status launch_certify_fine(const Certify& certify, const Device& device, cudaStream_t stream) {
  const int64_t tiles_m = tiles_of(certify.m), tiles_n = tiles_of(certify.n);
  const int64_t tiles = certify.batch * tiles_m * tiles_n;
  if (tiles > INT32_MAX) return Status("certify: more than 2^31 tiles of outputs");
  return launch_resident("certify_fine_kernel", certify_fine_kernel, {tiles, kThreads}, device,
                         stream, certify, static_cast<uint32_t>(tiles_m),
                         static_cast<uint32_t>(tiles_n));
}

}  // namespace ozaki
