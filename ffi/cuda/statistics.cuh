// Row statistics by groups of lanes of a warp. Whole warps must call.
#pragma once

#include <cstdint>

#include "common/occupancy.h"
#include "common/scale.h"
#include "common/statistics.h"
#include "common/tables.h"
#include "operand_tile.cuh"

namespace ozaki {

constexpr uint32_t kWarp = ~0u;
constexpr int kWarpLanes = 32;

template <typename T, typename Join>
__device__ __forceinline__ T group_reduce(T x, int lanes, Join join) {
  for (int i = lanes >> 1; i > 0; i >>= 1) x = join(x, __shfl_xor_sync(kWarp, x, i));
  return x;
}

__device__ __forceinline__ int group_max(int x, int lanes) {
  if (lanes == kWarpLanes) return __reduce_max_sync(kWarp, x);
  return group_reduce(x, lanes, [](int a, int b) { return max(a, b); });
}

__device__ __forceinline__ int group_min(int x, int lanes) {
  if (lanes == kWarpLanes) return __reduce_min_sync(kWarp, x);
  return group_reduce(x, lanes, [](int a, int b) { return min(a, b); });
}

__device__ __forceinline__ uint32_t group_or(uint32_t x, int lanes) {
  if (lanes == kWarpLanes) return __reduce_or_sync(kWarp, x);
  return group_reduce(x, lanes, [](uint32_t a, uint32_t b) { return a | b; });
}

__device__ __forceinline__ uint32_t group_sum(uint32_t x, int lanes) {
  if (lanes == kWarpLanes) return __reduce_add_sync(kWarp, x);
  return group_reduce(x, lanes, [](uint32_t a, uint32_t b) { return a + b; });
}

__device__ __forceinline__ uint64_t group_sum(uint64_t x, int lanes) {
  if (lanes == kWarpLanes) {
    // Parts whose sums fit 32 bits.
    constexpr int kBits = 27;
    const auto part = [x](int i) { return static_cast<uint32_t>(x >> i * kBits) % (1u << kBits); };
    return __reduce_add_sync(kWarp, part(0)) +
           (uint64_t{__reduce_add_sync(kWarp, part(1))} << kBits) +
           (uint64_t{__reduce_add_sync(kWarp, part(2))} << 2 * kBits);
  }
  return group_reduce(x, lanes, [](uint64_t a, uint64_t b) { return a + b; });
}

// What a lane adds to the statistics of a chunk.
struct ChunkSums {
  uint64_t sumsq = 0;
  uint32_t sumabs = 0;
  uint32_t nnz = 0;
  int lsb = INT32_MAX;

  __device__ __forceinline__ void add(uint64_t bits, int emax) {
    if (is_zero(bits)) return;
    const uint32_t scaled = scaled_magnitude(bits, emax);
    sumsq += uint64_t{scaled} * scaled;
    sumabs += scaled;
    nnz += 1;
    lsb = min(lsb, lowest_bit(bits));
  }

  // The same in 32-bit words, for finite elements of a chunk whose largest one is normal.
  __device__ __forceinline__ void add_ordinary(uint64_t bits, int emax) {
    const uint32_t low = static_cast<uint32_t>(bits);
    const int high = static_cast<int>(bits >> 32) & 0x7fffffff;
    const int field = max((high >> 20) - 1, 0);  // 0 for the lowest exponent, subnormals included
    const int upper = high - (field << 20);      // the upper 21 bits of the significand
    // Rounding up is rounding down -|a|, whose square is the same.
    const int rounded_up = -upper - (low != 0 ? 1 : 0);
    const int scaled = rounded_up >> min(emax + 1026 - field, 31);
    sumsq += static_cast<uint64_t>(int64_t{scaled} * scaled);
    sumabs -= scaled;
    nnz += static_cast<uint32_t>(scaled) >> 31;
    const uint32_t word = low != 0 ? low : static_cast<uint32_t>(upper);
    const int trailing_zeros = __popc(~word & (word - 1)) + (low != 0 ? 0 : 32);
    if (scaled != 0) lsb = min(lsb, field - 1074 + trailing_zeros);
  }

  // The same where all elements are dense: half the work.
  __device__ __forceinline__ void add_dense(uint64_t bits, int emax) {
    const uint32_t low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
    const int field = static_cast<int>(high >> 20) & 0x7ff;
    int rounded_up;  // ~(high & 0xfffff | 0x100000), which the compiler would split in two
    asm("lop3.b32 %0, %1, 0xfffff, %2, 0x15;" : "=r"(rounded_up) : "r"(high), "r"(0x100000));
    int scaled;  // shifts by more than 31 leave the sign: PTX says so, C++ does not
    asm("shr.s32 %0, %1, %2;" : "=r"(scaled) : "r"(rounded_up), "r"(emax + 1027 - field));
    sumsq += static_cast<uint64_t>(int64_t{scaled} * scaled);
    sumabs -= scaled;
    nnz += 1;
    lsb = min(lsb, field - 1075 + __popc(~low & (low - 1)));
  }
};

// What decides how elements are added: their largest and smallest upper words, the sign apart, and
// their smallest lower word.
struct WordRange {
  uint32_t largest = 0, smallest = UINT32_MAX, smallest_low = UINT32_MAX;

  __device__ __forceinline__ void add(uint64_t bits) {
    const uint32_t upper = static_cast<uint32_t>(bits >> 32) & 0x7fffffff;
    largest = max(largest, upper);
    smallest = min(smallest, upper);
    smallest_low = min(smallest_low, static_cast<uint32_t>(bits));
  }
  // All are normal and none has a lower word of zeros, as full-precision data are.
  __device__ __forceinline__ bool dense() const { return smallest >= 1 << 20 && smallest_low != 0; }
};

// Whether an exponent field is that of a normal number.
__device__ __forceinline__ bool is_normal_field(int field) { return field != 0 && field != 0x7ff; }

// The lanes that share a chunk: those whose numbers differ in bits of `mask` alone.
struct ChunkLanes {
  uint32_t mask;

  // join(other), where other(x) is the x of another lane, until all lanes hold the same.
  template <typename Join>
  __device__ __forceinline__ void reduce(Join join) const {
#pragma unroll
    for (int bit = 1; bit < kWarpLanes; bit *= 2) {
      if ((mask & bit) != 0) join([bit](auto x) { return __shfl_xor_sync(kWarp, x, bit); });
    }
  }
};

// The statistics of a chunk from kElements of each lane: element(i) for constant i, read(i) for any.
template <int kElements, typename Element, typename Read>
__device__ __forceinline__ RowStatistics chunk_statistics(ChunkLanes lanes, Element element,
                                                          Read read) {
  // The largest upper word tells emax of a chunk that has finite elements, one of them normal.
  // Everything else (zeros, subnormals alone, NaN, Inf) takes the long way, a whole warp at a time.
  WordRange range;
#pragma unroll
  for (int i = 0; i < kElements; ++i) range.add(element(i));
  lanes.reduce([&](auto other) { range.largest = max(range.largest, other(range.largest)); });
  const int field = static_cast<int>(range.largest >> 20);
  const bool ordinary = is_normal_field(field);
  int emax = field - 1022;
  uint32_t flags = 0;
  ChunkSums sums;
  if (__all_sync(kWarp, ordinary && range.dense())) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) sums.add_dense(element(i), emax);
  } else if (__all_sync(kWarp, ordinary)) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) sums.add_ordinary(element(i), emax);
  } else {
    emax = INT32_MIN;
#pragma unroll 1
    for (int i = 0; i < kElements; ++i) {
      flags |= element_flags(read(i));
      const uint64_t magnitude = finite_magnitude(read(i));
      if (!is_zero(magnitude)) emax = max(emax, magnitude_exponent(magnitude));
    }
    lanes.reduce([&](auto other) { emax = max(emax, other(emax)), flags |= other(flags); });
#pragma unroll 1
    for (int i = 0; i < kElements; ++i) sums.add(finite_magnitude(read(i)), emax);
  }

  uint32_t counts = sums.nnz << 24 | sums.sumabs;  // sumabs <= 2^23 of all lanes
  lanes.reduce([&](auto other) {
    sums.sumsq += other(sums.sumsq);
    counts += other(counts);
    sums.lsb = min(sums.lsb, other(sums.lsb));
  });
  const uint32_t nnz = counts >> 24;
  if (nnz == 0) emax = sums.lsb = 0;
  return {emax, sums.lsb, sums.sumsq, counts % (1u << 24), nnz, flags};
}

// The statistics of a tile's chunks, handed to store(row, chunk of the row, statistics).
template <typename Store>
__device__ __forceinline__ void tile_statistics(const Tiling& tiling, const TilePosition& position,
                                                const uint64_t* tile, Store store) {
  const int log2_lanes = tiling.log2_chunk_lanes, lanes = 1 << log2_lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const int chunks = tiling.chunks_per_row.divisor, count = position.rows * chunks;
  for (int first = 0; first < count; first += kTileThreads >> log2_lanes) {
    int index = first + (threadIdx.x >> log2_lanes);
    const bool inside = index < count;
    if (!__any_sync(kWarp, inside)) break;
    index = inside ? index : 0;
    const int row = tiling.chunks_per_row(index), chunk = index - row * chunks;
    // A lane takes pairs of elements; the lanes of a chunk read neighbouring ones.
    const uint64_t* source = tile + row * tiling.pitch + chunk * kChunk + 2 * lane;
    const auto element = [&](int i) { return source[i / 2 * 2 * lanes + i % 2]; };
    const RowStatistics statistics = chunk_statistics<kLaneElements>(
        {(lanes - 1u) % (kChunk / kLaneElements)}, element, element);
    if (lane == 0 && inside) store(row, chunk, statistics);
  }
}

// Lanes that join `count` chunks.
__host__ __device__ inline int join_log2_lanes(int64_t count) {
  return count > 16 ? 5 : count > 8 ? 4 : count > 4 ? 3 : count > 2 ? 2 : 1;
}

// The statistics of a row from its `count` chunks, by a group of lanes; chunk(c) reads one.
template <typename Chunk>
__device__ __forceinline__ RowStatistics join_chunks(int count, int lanes, Chunk chunk) {
  const int lane = threadIdx.x & (lanes - 1);
  RowStatistics own = {};
  for (int c = lane; c < count; c += lanes) join_all_but_sums(own, chunk(c));
  RowStatistics row = {};
  row.nnz = group_sum(own.nnz, lanes);
  row.flags = group_or(own.flags, lanes);
  const int emax = group_max(own.nnz != 0 ? own.emax : INT32_MIN, lanes);
  const int lsb = group_min(own.nnz != 0 ? own.lsb : INT32_MAX, lanes);
  if (row.nnz != 0) row.emax = emax, row.lsb = lsb;
  for (int c = lane; c < count; c += lanes) join_sums(row, chunk(c));
  row.sumsq = group_sum(row.sumsq, lanes);
  row.sumabs = group_sum(row.sumabs, lanes);
  return row;
}

// The occupancy of the row, likewise.
template <typename Chunk>
__device__ __forceinline__ uint64_t join_occupancy(int count, int lanes, int log2_chunks,
                                                   Chunk chunk) {
  uint64_t own = 0;
  for (int c = threadIdx.x & (lanes - 1); c < count; c += lanes) {
    own |= occupancy_of_chunk(chunk(c), c, log2_chunks);
  }
  const uint32_t low = group_or(static_cast<uint32_t>(own), lanes);
  return uint64_t{group_or(static_cast<uint32_t>(own >> 32), lanes)} << 32 | low;
}

// The scale of the row of `statistics` from its chunks as above; element(h) reads one. In the first
// lane of a group; the others may leave it to that one.
template <typename Chunk, typename Element>
__device__ __forceinline__ RowScale group_scale(const RowStatistics& statistics,
                                                const ScaleBounds& bounds, int count, int lanes,
                                                Chunk chunk, Element element) {
  RowScale fewer = {};
  if (bounds.most_rounded != 0) {
    const int lane = threadIdx.x & (lanes - 1);
    const auto rounds = [&](int c, int mu) { return chunk(c).nnz != 0 && chunk(c).lsb < -mu; };
    const auto rounded_chunks = [&](int mu) {
      uint32_t found = 0;
      for (int c = lane; c < count; c += lanes) found += rounds(c, mu);
      return lanes == kWarpLanes ? __reduce_add_sync(kWarp, found) : group_sum(found, lanes);
    };
    // No norm allows more than this: it rounds too much of rows of full precision already.
    fewer.rounded = rounded_chunks(32 + bounds.fewer.exponent - statistics.emax);
    if (__any_sync(kWarp, fewer.rounded <= bounds.most_rounded)) {
      fewer.mu = scale_exponent(statistics, bounds.fewer);
      const bool special = is_sentinel(fewer.mu);
      fewer.rounded = rounded_chunks(special ? 0 : fewer.mu);
      const bool few = !special && fewer.rounded <= bounds.most_rounded;
      uint32_t elements = 0;
      for (int c = 0; few && fewer.rounded != 0 && c < count; ++c) {
        if (!rounds(c, fewer.mu)) continue;
#pragma unroll 4
        for (int h = c * kChunk + lane; h < (c + 1) * kChunk; h += lanes) {
          elements += is_rounded(element(h), fewer.mu);
        }
      }
      elements = group_sum(elements, lanes);
      if (few || special) fewer.rounded = elements;
    }
  }
  return row_scale(statistics, bounds, fewer);
}

}  // namespace ozaki
