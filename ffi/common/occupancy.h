// Where in k a row has nonzero elements: what outputs need not sum, and cannot err in.
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

// Whether any part of those that `count` elements from h on lie in, of k, is occupied.
OZAKI_HD bool occupies(uint64_t occupancy, int64_t h, int64_t count, int64_t k) {
  const int64_t length = part_length(k), first = h / length;
  const int64_t last = ((h + count < k ? h + count : k) - 1) / length;
  return (occupancy >> first << first << (kParts - 1 - last)) != 0;
}

}  // namespace ozaki
