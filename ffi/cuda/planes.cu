#include <string>

#include "device.h"
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
};

// A thread's i-th element. Lanes follow each other along k or along the rows.
template <bool kContiguous>
__device__ __forceinline__ int2 row_and_position(int i) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if constexpr (kContiguous) {
    return {warp * (kRows / kWarps) + i / (kDepth / 32), i % (kDepth / 32) * 32 + lane};
  } else {
    return {lane, warp * kElements + i};
  }
}

template <bool kContiguous, int kPlanes>
__global__ void __launch_bounds__(kThreads)
    planes_kernel(const __grid_constant__ Planes args, const PlaneGrid grid) {
  constexpr bool kFinePart = kPlanes == kFinePlanes;
  constexpr int kBytes = kFinePart ? 3 : 1;  // kinds of bytes: high, low, mask
  constexpr int kBits = kFinePart ? kFineBits : kCoarseBits;
  __shared__ __align__(4) uint8_t tile[kBytes][kRows * kPitch];
  __shared__ int emax_of[kRows];
  const Layout& layout = args.layout;
  const uint32_t row_tile = blockIdx.x / grid.depth_tiles;
  const int64_t first_h = int64_t{blockIdx.x - row_tile * grid.depth_tiles} * kDepth;
  const uint32_t b = row_tile / grid.row_tiles;
  const int64_t first_row = int64_t{row_tile - b * grid.row_tiles} * kRows;
  const int rows = static_cast<int>(min(int64_t{kRows}, layout.rows - first_row));
  const int64_t row_of_batch = b * layout.rows + first_row;
  if (kFinePart && !args.flagged.any(args.side, row_of_batch, rows, layout.rows)) return;

  const uint64_t* x = reinterpret_cast<const uint64_t*>(args.x) + layout.offset(b, first_row, 0);
  uint64_t bits[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const auto [row, place] = row_and_position<kContiguous>(i);
    const int64_t h = first_h + place;
    const bool inside = row < rows && h < grid.kept;
    bits[i] = inside ? x[row * layout.stride_r + args.subset.element(h) * layout.stride_k] : 0;
  }
  if (threadIdx.x < rows) {
    const RowStatistics row = load_fields(args.stats + (row_of_batch + threadIdx.x) * kStatsFields);
    emax_of[threadIdx.x] = row.flags != 0 ? INT32_MAX : row.emax;
  }
  __syncthreads();

#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const auto [row, place] = row_and_position<kContiguous>(i);
    const int at = row * kPitch + place;
    const int emax = row < rows ? emax_of[row] : 0;
    const bool live = emax != INT32_MAX;
    const uint32_t magnitude = live ? plane_magnitude(bits[i], emax, kBits) : 0;
    if constexpr (kFinePart) {
      const bool nonzero = live && !is_zero(bits[i]);
      tile[0][at] = fine_plane(magnitude, nonzero, 0, Side::kLhs);
      tile[1][at] = fine_plane(magnitude, nonzero, 2, Side::kLhs);
      tile[2][at] = fine_plane(magnitude, nonzero, 3, Side::kLhs);
    } else {
      tile[0][at] = static_cast<uint8_t>(magnitude);
    }
  }
  __syncthreads();

  // A warp writes a row at a time.
  const int64_t h = first_h + threadIdx.x % 32 * 4;
  if (h >= grid.kq) return;
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
    const bool low = plane == (args.side == Side::kLhs ? 2 : 1);
    const uint8_t* source = tile[plane == 3 ? 2 : kFinePart && low ? 1 : 0];
    for (int row = threadIdx.x / 32; row < rows; row += kWarps) {
      const int64_t target =
          ((int64_t{b} * kPlanes + plane) * layout.rows + first_row + row) * grid.kq;
      *reinterpret_cast<uint32_t*>(args.planes + target + h) =
          *reinterpret_cast<const uint32_t*>(source + row * kPitch + threadIdx.x % 32 * 4);
    }
  }
}

template <int kPlanes>
Status launch(const Planes& planes, cudaStream_t stream) {
  const Layout& layout = planes.layout;
  PlaneGrid grid;
  grid.kept = planes.subset.kept();
  grid.kq = padded_k(grid.kept);
  grid.row_tiles = static_cast<uint32_t>((layout.rows + kRows - 1) / kRows);
  grid.depth_tiles = static_cast<uint32_t>((grid.kq + kDepth - 1) / kDepth);
  const int64_t tiles = layout.batch * grid.row_tiles * grid.depth_tiles;
  if (tiles > INT32_MAX) return Status("planes: more than 2^31 tiles in the operand");
  const bool contiguous = layout.stride_k == 1 || layout.k == 1;
  const auto kernel = contiguous ? planes_kernel<true, kPlanes> : planes_kernel<false, kPlanes>;
  kernel<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(planes, grid);
  return launch_status("planes_kernel");
}

}  // namespace

Status launch_planes(const Planes& planes, int count, cudaStream_t stream) {
  return count == kCoarsePlanes ? launch<kCoarsePlanes>(planes, stream)
                                : launch<kFinePlanes>(planes, stream);
}

}  // namespace ozaki
