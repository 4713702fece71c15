// Where in k a row has nonzero elements: what outputs need not sum, and do not err in.
//
// k is cut into at most kParts parts of a power of two of chunks each, fewest chunks that reach.
// Bit q of a row's occupancy says that part q holds a nonzero.
#pragma once

#include "common/statistics.h"
#include "common/tables.h"

namespace ozaki {

constexpr int kParts = 64;

// log2 of the chunks of a part, of rows of so many chunks.
OZAKI_HD int log2_chunks_of_part(int64_t chunks) {
  int log2 = 0;
  while ((int64_t{kParts} << log2) < chunks) ++log2;
  return log2;
}

// The elements of a part, of rows of k.
OZAKI_HD int64_t part_length(int64_t k) {
  return int64_t{kChunk} << log2_chunks_of_part((k + kChunk - 1) / kChunk);
}

// The bit of a chunk.
OZAKI_HD uint64_t occupancy_of_chunk(const RowStatistics& chunk, int64_t index, int log2_chunks) {
  return chunk.nnz != 0 ? uint64_t{1} << (index >> log2_chunks) : 0;
}

// How many elements of k lie in parts that a row and a column share, at most: exact.
OZAKI_HD float overlap(uint64_t row, uint64_t column, float part_length) {
  return static_cast<float>(popcount64(row & column)) * part_length;
}

// The bits of the parts that there are.
OZAKI_HD uint64_t full_occupancy(int64_t k) {
  return ~uint64_t{0} >> (kParts - 1 - (k - 1) / part_length(k));
}

// What stages know of a tile of outputs is a word: the set of the rungs in it, bit r for rung r, and
// from kSkippedBefore and kSkippedAfter on eight bits each: how many parts of k, before all others
// and after all others, no row of it shares with any column. Of 64 parts: a set alone skips none.
constexpr int kSkippedBefore = 8, kSkippedAfter = 16;
OZAKI_HD uint32_t rungs_of(uint32_t tile) { return tile & 255; }
OZAKI_HD uint32_t skipped_before(uint32_t tile) { return tile >> kSkippedBefore & 255; }
OZAKI_HD uint32_t skipped_after(uint32_t tile) { return tile >> kSkippedAfter & 255; }

// What a tile skips whose rows, together, share these parts with its columns. At least one part is
// left.
OZAKI_HD uint32_t skips(uint64_t shared) {
  if (shared == 0) return uint32_t{kParts - 1} << kSkippedAfter;
  return static_cast<uint32_t>(ctz64(shared)) << kSkippedBefore |
         static_cast<uint32_t>(clz64(shared)) << kSkippedAfter;
}

// Two tiles as one; 0 is none.
OZAKI_HD uint32_t join_tiles(uint32_t x, uint32_t y) {
  if (x == 0 || y == 0) return x | y;
  const uint32_t before[] = {skipped_before(x), skipped_before(y)};
  const uint32_t after[] = {skipped_after(x), skipped_after(y)};
  return rungs_of(x | y) | before[before[1] < before[0]] << kSkippedBefore |
         after[after[1] < after[0]] << kSkippedAfter;
}

// The elements of k, of a tile that are not skipped.
struct KRange {
  int64_t begin, end;
};

OZAKI_HD KRange k_range(uint32_t tile, int64_t k) {
  const int64_t length = part_length(k), end = (kParts - skipped_after(tile)) * length;
  return {skipped_before(tile) * length, end < k ? end : k};
}

// Whether any part of those that `count` elements from h on lie in, of k, is occupied.
OZAKI_HD bool occupies(uint64_t occupancy, int64_t h, int64_t count, int64_t k) {
  const int64_t length = part_length(k), first = h / length;
  const int64_t last = ((h + count < k ? h + count : k) - 1) / length;
  return (occupancy >> first << first << (kParts - 1 - last)) != 0;
}

}  // namespace ozaki
