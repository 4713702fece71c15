#include "tiling.h"

#include <algorithm>

#include "common/tables.h"

namespace ozaki {
namespace {

// Elements of a tile. A thread takes eight at a time: below 2048 threads would idle. From 4096 on
// more only takes room from other tiles, but long rows need it.
constexpr int64_t kMinElements = 2048, kElements = 4096, kMaxElements = 8192;

constexpr int64_t kTilesPerMultiprocessor = 4;  // enough to fill it

// Elements of a row that a CTA takes where a cluster shares the row, and CTAs of a cluster: contiguous
// rows that fit no tile, strided ones while one launch is faster than three.
constexpr int64_t kPiece = kMaxElements, kMaxCluster = 8;
constexpr int64_t kStridedPiece = 512, kMaxStridedCluster = 4;

// Rows of a tile that is not contiguous along k: 128-byte reads, or whole sectors where the operand
// fits an L2 cache, for one launch instead of three. Its depth makes runs of 256 bytes written.
constexpr int64_t kStridedDepth = 2 * kChunk;
constexpr int64_t kMinRun = 16, kMinCachedRun = 4, kCachedElements = 4 << 20;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t power_of_two_at_least(int64_t x) {
  int64_t power = 1;
  while (power < x) power *= 2;
  return power;
}

int log2(int64_t power_of_two) { return __builtin_ctzll(power_of_two); }

}  // namespace

bool make_tiling(const double* x, const Layout& layout, const Device& device, TilePass pass,
                 Tiling& tiling) {
  tiling.x = reinterpret_cast<const uint64_t*>(x);
  tiling.layout = layout;

  // Smaller tiles where the operand would not fill the device.
  const int64_t all_rows = layout.batch * layout.rows, kp = padded_k(layout);
  const int64_t share = all_rows * kp / (kTilesPerMultiprocessor * device.multiprocessors);
  const int64_t elements =
      std::clamp(power_of_two_at_least(share + 1) / 2, kMinElements, kElements);
  const bool whole_rows = pass == TilePass::kWholeRows, contiguous_k = tiling.k_contiguous();
  const int64_t piece = contiguous_k ? kPiece : kStridedPiece;
  const int64_t cluster = power_of_two_at_least(ceil_div(kp, piece));
  int64_t rows, depth;
  if (whole_rows && device.bulk_copies && cluster > 1 &&
      cluster <= (contiguous_k ? kMaxCluster : kMaxStridedCluster)) {
    depth = round_up(ceil_div(kp, cluster), kChunk);
    rows = contiguous_k ? 1 : kElements / kStridedPiece;
  } else if (contiguous_k) {
    depth = whole_rows ? kp : std::min(kp, elements);
    rows = std::max<int64_t>(elements / depth, 1);
  } else {
    depth = whole_rows ? kp : std::min(kp, kStridedDepth);
    const int64_t run = all_rows * kp <= kCachedElements ? kMinCachedRun : kMinRun;
    rows = std::max(power_of_two_at_least(elements / depth + 1) / 2, run);
  }
  // A device with less shared memory has room for one long row a multiprocessor: two passes then.
  const int64_t most = device.shared_bytes_multiprocessor >= 160 << 10 ? kMaxElements : kElements;
  if (rows * depth > most) return false;
  tiling.rows = static_cast<int>(std::min({rows, int64_t{kMaxTileRows}, all_rows}));
  tiling.depth = static_cast<int>(depth);

  const int64_t sequences = layout.rows >= tiling.rows ? layout.batch : 1;
  tiling.sequence_rows = all_rows / sequences;
  tiling.row_tiles = static_cast<int>(ceil_div(tiling.sequence_rows, tiling.rows));
  tiling.depth_tiles = static_cast<int>(ceil_div(kp, depth));
  tiling.tiles = sequences * tiling.row_tiles * tiling.depth_tiles;
  const int64_t contiguous = tiling.k_contiguous() ? depth : tiling.rows * layout.parts;
  tiling.log2_lanes = log2(std::min(power_of_two_at_least(contiguous), int64_t{kTileThreads}));

  const int64_t chunk = std::min(power_of_two_at_least(depth), int64_t{kChunk});
  tiling.log2_chunk_lanes = log2(chunk / kLaneElements);
  tiling.filled_depth = static_cast<int>(ceil_div(depth, chunk) * chunk);

  // Bulk copies keep the order of elements. Two past a multiple of sixteen: the copies of sixteen
  // rows by two consecutive h meet in no bank.
  tiling.pitch = static_cast<int>(round_up(tiling.filled_depth, 16)) + 2;
  tiling.chunks_per_row = Divider(static_cast<uint32_t>(ceil_div(depth, chunk)));
  tiling.row_chunks = static_cast<int>(ceil_div(kp, chunk));
  tiling.octets_per_row = Divider(static_cast<uint32_t>(depth / 8));

  const auto even = [](int64_t stride) { return stride % 2 == 0; };
  tiling.bulk = device.bulk_copies && tiling.k_contiguous() && even(layout.k) &&
                even(layout.stride_r) && even(layout.stride_b) &&
                reinterpret_cast<uintptr_t>(x) % 16 == 0;
  return true;
}

}  // namespace ozaki
