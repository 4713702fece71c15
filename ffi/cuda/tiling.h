// How an operand is cut into tiles, one a CTA: the launch heuristics of statistics and quantize.
#pragma once

#include <cstdint>

#include "common/layout.h"
#include "device.h"

namespace ozaki {

constexpr int kTileThreads = 256;
constexpr int kMaxTileRows = 256;
constexpr int kLaneElements = 16;  // of a chunk: many, since what follows them costs a warp as much

// x / divisor by one multiplication, for x * divisor < 2^31.
struct Divider {
  uint32_t divisor, multiplier;

  Divider() = default;
  explicit Divider(uint32_t d) : divisor(d), multiplier(((1u << 31) + d - 1) / d) {}
#if defined(__CUDACC__)
  __device__ uint32_t operator()(uint32_t x) const { return __umulhi(2 * x, multiplier); }
#endif
};

// A tile is `rows` consecutive rows by `depth` consecutive elements of the contraction. Where a
// batch element has fewer rows than a tile, the rows of the whole batch are one sequence.
struct Tiling {
  const uint64_t* x;  // bits of float64s
  Layout layout;
  int64_t sequence_rows;  // rows of a sequence; a tile never crosses its end
  int rows, depth;        // of a tile
  int row_tiles;          // tiles of a sequence along its rows
  int depth_tiles;        // tiles along k and the padding of residues; kWholeRows: of a cluster
  int64_t tiles;
  int log2_lanes;  // consecutive threads along the contiguous axis, as a power of two

  int pitch;             // in shared memory element h of row r is at r pitch + h
  int filled_depth;      // zeros follow the elements up to here: whole chunks
  int log2_chunk_lanes;  // lanes that share a chunk, kLaneElements each

  Divider chunks_per_row, octets_per_row;  // of the tile
  int row_chunks;                          // of whole rows
  bool bulk;                               // rows are read by bulk copies

  OZAKI_HD bool k_contiguous() const { return layout.k_contiguous(); }
  // In shared memory: the tile, and the barrier of its bulk copies.
  OZAKI_HD int tile_words() const { return rows * pitch + 2; }
  OZAKI_HD int tile_bytes() const { return tile_words() * static_cast<int>(sizeof(uint64_t)); }
};

enum class TilePass {
  kBlocks,    // rows may be cut along k
  kWholeRows  // a tile, or a cluster of them one row, holds its rows from end to end
};

// False where rows are too long for kWholeRows on this device.
bool make_tiling(const double* x, const Layout& layout, const Device& device, TilePass pass,
                 Tiling& tiling);

}  // namespace ozaki
