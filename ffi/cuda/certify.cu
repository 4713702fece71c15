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

// What an output's row or column brings, at the first scales and, for the fine planes, the wide.
template <bool kFinePart>
struct Bounds {
  RowBound narrow, wide;

  __device__ __forceinline__ static Bounds of(const CertifiedRows& rows, int64_t row) {
    const RowStatistics statistics = load_fields(rows.stats + row * kStatsFields);
    Bounds bounds;
    bounds.narrow = row_bound(statistics, rows.scale[row], kFinePart ? kFineBits : kCoarseBits);
    bounds.wide =
        kFinePart ? row_bound(statistics, rows.wide_scale[row], kFineBits) : bounds.narrow;
    return bounds;
  }
};

template <bool kFinePart>
__global__ void __launch_bounds__(kThreads)
    certify_kernel(const __grid_constant__ Certify args, uint32_t tiles_m, uint32_t tiles_n) {
  __shared__ Bounds<kFinePart> rows[kTile], bounds_of[kTile];
  __shared__ uint32_t sets[kWarps], worsts[kWarps];
  const uint32_t row_tile = blockIdx.x / tiles_n;
  const uint32_t tile_n = blockIdx.x - row_tile * tiles_n;
  const uint32_t batch = row_tile / tiles_m, tile_m = row_tile - batch * tiles_m;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t np = padded(args.n), plane = args.m * np;

  if (kFinePart && (args.tiles[blockIdx.x] >> kUndecided & 1) == 0) {
    if (threadIdx.x == 0) args.worst[blockIdx.x] = 0;
    return;
  }

  const int64_t first_row = int64_t{tile_m} * kTile, first_column = int64_t{tile_n} * kTile;
  const int64_t column = first_column + lane * kColumns;
  const int height = static_cast<int>(min(kTile, args.m - first_row));
  const int width = static_cast<int>(min(kTile, args.n - first_column));
  const int place = threadIdx.x % kTile;
  if (threadIdx.x < kTile && place < height) {
    rows[place] = Bounds<kFinePart>::of(args.rows, batch * args.m + first_row + place);
  } else if (threadIdx.x >= kTile && place < width) {
    bounds_of[place] = Bounds<kFinePart>::of(args.columns, batch * args.n + first_column + place);
  }
  __syncthreads();
  Bounds<kFinePart> columns[kColumns];
#pragma unroll
  for (int e = 0; e < kColumns; ++e) columns[e] = bounds_of[lane * kColumns + e];

  uint32_t set = 0;
  float worst = 0;
  constexpr int kPlanes = kFinePart ? kFinePlanes : kCoarsePlanes;
  const int64_t first = (batch * args.m + first_row) * np + column;
  const int32_t* const sums = args.sums + batch * (kPlanes - 1) * plane + first;
  constexpr int kBatch = 4 / kPlanes;  // rows whose sums are on their way at once
  for (int begin = warp; begin < height; begin += kBatch * kWarps) {
    int4 sum[kBatch][kPlanes];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = begin + i * kWarps;
#pragma unroll
      for (int p = 0; p < kPlanes; ++p) {
        const int32_t* const source = sums + p * plane + row * np;
        sum[i][p] =
            row < height && column < np ? __ldcs(reinterpret_cast<const int4*>(source)) : int4{};
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = begin + i * kWarps;
      if (row >= height || column >= np) break;
      const int64_t at = first + row * np;
      uint32_t* const target = reinterpret_cast<uint32_t*>(args.rung + at);
      const uint32_t earlier = kFinePart ? *target : 0;
      const auto sum_of = [&](int p, int e) {
        const int4& x = sum[i][p];
        return e == 0 ? x.x : e == 1 ? x.y : e == 2 ? x.z : x.w;
      };
      uint32_t word = 0;
#pragma unroll
      for (int e = 0; e < kColumns; ++e) {
        if (column + e >= args.n) break;
        uint32_t rung = earlier >> (8 * e) & 255;
        if (rung == kUndecided) {
          Decision decision;
          if constexpr (kFinePart) {
            decision = decide(rows[row].narrow, columns[e].narrow, rows[row].wide, columns[e].wide,
                              {sum_of(0, e), sum_of(1, e), sum_of(2, e), sum_of(3, e)}, args.all_k,
                              args.tau_half);
          } else {
            decision = decide(rows[row].narrow, columns[e].narrow, sum_of(0, e), args.tau_half);
          }
          rung = decision.rung;
          // Few ratios can be the largest: the others need no division.
          const Certificate& by = decision.by;
          if (by.error > 0.999f * worst * by.scale) worst = fmaxf(worst, by.ratio());
        }
        set |= 1u << rung;
        word |= rung << (8 * e);
      }
      *target = word;
    }
    // Floats that are not negative are in the order of their bits.
    worst = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(worst)));
  }

  set = __reduce_or_sync(~0u, set);
  if (lane == 0) sets[warp] = set, worsts[warp] = __float_as_uint(worst);
  __syncthreads();
  if (threadIdx.x >= kWarps) return;
  constexpr uint32_t kLanes = (1u << kWarps) - 1;
  set = __reduce_or_sync(kLanes, sets[threadIdx.x]);
  const uint32_t ratio = __reduce_max_sync(kLanes, worsts[threadIdx.x]);
  if (threadIdx.x == 0) {
    args.tiles[blockIdx.x] = static_cast<uint8_t>(set);
    args.worst[blockIdx.x] = __uint_as_float(ratio);
  }
}

}  // namespace

Status launch_certify(const Certify& certify, int planes, cudaStream_t stream) {
  const int64_t tiles_m = tiles_of(certify.m), tiles_n = tiles_of(certify.n);
  const int64_t tiles = certify.batch * tiles_m * tiles_n;
  if (tiles > INT32_MAX) return Status("certify: more than 2^31 tiles of outputs");
  const auto kernel = planes == kCoarsePlanes ? certify_kernel<false> : certify_kernel<true>;
  kernel<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(
      certify, static_cast<uint32_t>(tiles_m), static_cast<uint32_t>(tiles_n));
  return launch_status("certify_kernel");
}

}  // namespace ozaki
