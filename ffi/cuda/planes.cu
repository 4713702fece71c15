#include <algorithm>

#include "launch.h"
#include "needed_range.cuh"
#include "planes.h"

namespace ozaki {
namespace {

// A CTA makes kRows rows by kDepth bytes of every plane. It reads along the contiguous axis of the
// operand and turns the tile in shared memory: whole cache lines on both sides.
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRows = 32, kDepth = 128, kElements = kRows * kDepth / kThreads;
constexpr int kPitch = kDepth + 4;  // rows are a word apart modulo the banks

struct PlaneGrid {
  int64_t kept, kq;
  uint32_t row_tiles, depth_tiles;
  uint32_t shares;  // of the tiles of kRows rows
  int64_t all;      // shares
};

// The fine planes are made of few tiles. They are seldom made at all: CTAs that find so are to be few.
constexpr uint32_t kFineShares = 4;

// A CTA's tile of the operand in registers. Lanes follow each other along k or along the rows.
template <bool kContiguous>
struct Elements {
  uint64_t bits[kElements];

  // The i-th element of a thread is that of row row(i) at position place(i).
  static __device__ __forceinline__ int row(int i) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return kContiguous ? warp * (kRows / kWarps) + i / (kDepth / 32) : lane;
  }
  static __device__ __forceinline__ int place(int i) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return kContiguous ? i % (kDepth / 32) * 32 + lane : warp * kElements + i;
  }

  // x: the first row. Zeros outside.
  __device__ __forceinline__ void load(const Planes& args, const uint64_t* x, int rows,
                                       int64_t first_h, int64_t kept) {
    constexpr int kRun = kContiguous ? 32 : kElements;  // positions of a block of the subset
    static_assert(kPlaneBlock % kRun == 0);
    const Layout& layout = args.layout;
#pragma unroll
    for (int i = 0; i < kElements; i += kContiguous ? 1 : kElements) {
      const int64_t h = first_h + place(i);
      const uint64_t* source =
          x + row(i) * layout.stride_r + args.subset.element(h) * layout.stride_k;
#pragma unroll
      for (int l = 0; l < (kContiguous ? 1 : kElements); ++l) {
        bits[i + l] = row(i) < rows && h + l < kept ? source[l * layout.stride_k] : 0;
      }
    }
  }
};

// A share of the tiles of kRows rows.
template <bool kContiguous, int kPlanes>
__device__ __forceinline__ void make_planes(const Planes& args, const PlaneGrid& grid,
                                            uint32_t index) {
  constexpr bool kFinePart = kPlanes == kFinePlanes;
  constexpr int kBytes = kFinePart ? 3 : 1;  // kinds of bytes: high, low, mask
  constexpr int kBits = kFinePart ? kFineBits : kCoarseBits;
  __shared__ __align__(4) uint8_t tile[kBytes][kRows * kPitch];
  __shared__ int exponent_of[kRows];
  const Layout& layout = args.layout;
  const uint32_t row_tile = index / grid.shares, share = index - row_tile * grid.shares;
  const uint32_t b = row_tile / grid.row_tiles;
  const int64_t first_row = int64_t{row_tile - b * grid.row_tiles} * kRows;
  const int rows = static_cast<int>(min(int64_t{kRows}, layout.rows - first_row));
  const int64_t row_of_batch = b * layout.rows + first_row;
  uint32_t depth_begin = 0, depth_end = grid.depth_tiles;
  if (kFinePart) {
    const KRange needed =
        needed_range(args.flagged, args.side, row_of_batch, rows, layout.rows, layout.k);
    if (needed.end == 0) return;
    if (args.subset.all()) {
      depth_begin = static_cast<uint32_t>(needed.begin / kDepth);
      depth_end = static_cast<uint32_t>((needed.end + kDepth - 1) / kDepth);
    }
  }
  const uint64_t* x = reinterpret_cast<const uint64_t*>(args.x) + layout.offset(b, first_row, 0);

  for (uint32_t depth_tile = depth_begin + share; depth_tile < depth_end;
       depth_tile += grid.shares) {
    const int64_t first_h = int64_t{depth_tile} * kDepth;
    Elements<kContiguous> elements;
    elements.load(args, x, rows, first_h, grid.kept);
    if (depth_tile == depth_begin + share && threadIdx.x < kRows) {
      int exponent = 0;
      if (threadIdx.x < rows) {
        const int64_t* stats = args.stats + (row_of_batch + threadIdx.x) * kStatsFields;
        const RowStatistics row = load_fields(stats);
        exponent = row.flags != 0 ? kNoPlane : plane_exponent(row, kBits);
      }
      exponent_of[threadIdx.x] = exponent;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int at = elements.row(i) * kPitch + elements.place(i);
      const int exponent = exponent_of[elements.row(i)];
      if constexpr (kFinePart) {
        const uint32_t magnitude = plane_magnitude(elements.bits[i], exponent, kBits);
        const bool nonzero = exponent != kNoPlane && !is_zero(elements.bits[i]);
        tile[0][at] = fine_plane(magnitude, nonzero, 0, Side::kLhs);
        tile[1][at] = fine_plane(magnitude, nonzero, 2, Side::kLhs);
        tile[2][at] = fine_plane(magnitude, nonzero, 3, Side::kLhs);
      } else {
        tile[0][at] = static_cast<uint8_t>(coarse_magnitude(elements.bits[i], exponent));
      }
    }
    __syncthreads();

    // A warp writes a row at a time.
    const int64_t h = first_h + threadIdx.x % 32 * 4;
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      const bool low = plane == (args.side == Side::kLhs ? 2 : 1);
      const uint8_t* source = tile[plane == 3 ? 2 : kFinePart && low ? 1 : 0];
      for (int row = threadIdx.x / 32; row < rows && h < grid.kq; row += kWarps) {
        const int64_t target = (int64_t{b} * kPlanes + plane) * layout.rows + first_row + row;
        *reinterpret_cast<uint32_t*>(args.planes + target * grid.kq + h) =
            *reinterpret_cast<const uint32_t*>(source + row * kPitch + threadIdx.x % 32 * 4);
      }
    }
  }
}

template <bool kContiguous, int kPlanes>
__global__ void __launch_bounds__(kThreads)
    planes_kernel(const __grid_constant__ Planes args, const PlaneGrid grid) {
  if (kPlanes == kFinePlanes && args.flagged.none(args.layout.batch)) return;
  for (int64_t index = blockIdx.x; index < grid.all; index += gridDim.x) {
    make_planes<kContiguous, kPlanes>(args, grid, static_cast<uint32_t>(index));
    __syncthreads();
  }
}

template <int kPlanes>
Status launch_count(const Planes& planes, const Device& device, cudaStream_t stream) {
  const Layout& layout = planes.layout;
  PlaneGrid grid;
  grid.kept = planes.subset.kept();
  grid.kq = padded_k(grid.kept);
  grid.row_tiles = static_cast<uint32_t>((layout.rows + kRows - 1) / kRows);
  grid.depth_tiles = static_cast<uint32_t>((grid.kq + kDepth - 1) / kDepth);
  constexpr bool kFine = kPlanes == kFinePlanes;
  grid.shares = kFine ? std::min(grid.depth_tiles, kFineShares) : grid.depth_tiles;
  grid.all = layout.batch * grid.row_tiles * grid.shares;
  if (grid.all > INT32_MAX) return Status("planes: more than 2^31 tiles in the operand");
  const int64_t ctas = kFine ? std::min(grid.all, int64_t{4} * device.multiprocessors) : grid.all;
  const bool contiguous = layout.stride_k == 1 || layout.k == 1;
  const auto kernel = contiguous ? planes_kernel<true, kPlanes> : planes_kernel<false, kPlanes>;
  return launch("planes_kernel", kernel, {ctas, kThreads}, device, stream, planes, grid);
}

}  // namespace

Status launch_planes(const Planes& planes, int count, const Device& device, cudaStream_t stream) {
  return count == kCoarsePlanes ? launch_count<kCoarsePlanes>(planes, device, stream)
                                : launch_count<kFinePlanes>(planes, device, stream);
}

}  // namespace ozaki
