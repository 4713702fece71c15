// From 32-bit accumulators to residues v = acc inv mod p, and to partial CRT words.
//
// A quad of lanes (four that share rows of an accumulator tile) holds columns 8j + 2q + e of every
// eight, q the lane in the quad, e = 0, 1. Rows of the rhs tile are therefore placed in shared
// memory so that those are consecutive output columns (permuted_row): bytes are then stored
// straight from registers, 16 a lane. Words are stored in pairs and need no permutation.
#pragma once

#include <cstdint>

#include "common/residue.h"
#include "mma_constants.h"
#include "mma_launch.h"
#include "pack_bytes.cuh"
#include "symmetry.h"
#include "tile_scheduler.cuh"

namespace ozaki {

// Row of a block of 4 kColumns rhs rows that belongs in place `slot`, so that each lane of a quad
// owns kColumns consecutive columns. It permutes the bits of `slot`: linear over disjoint bits.
template <int kColumns>
__host__ __device__ constexpr int permuted_row(int slot) {
  const int e = slot % 2, q = slot / 2 % 4, j = slot / 8;
  return q * kColumns + 2 * j + e;
}

// The moduli that one tile of the output needs, one after the other.
struct TileModuli {
  int operand;  // index of the first one's operands, batch * moduli + modulus
  int first, count;
};

template <MmaOutput kKind>
__device__ __forceinline__ TileModuli tile_moduli(int problem, int moduli) {
  if constexpr (kKind != MmaOutput::kPartialCrt) {
    return {problem, problem % moduli, 1};
  } else {
    const int groups = (moduli + kGroupSize - 1) / kGroupSize;
    const int batch = problem / groups, first = (problem - batch * groups) * kGroupSize;
    return {batch * moduli + first, first, min(kGroupSize, moduli - first)};
  }
}

// Crt<N>::epilogue_weights for every N.
struct WeightTable {
  uint32_t at[kMaxModuli + 1][kMaxModuli];
};

template <int N>
constexpr void set_weights(WeightTable& table) {
  for (int i = 0; i < N; ++i) table.at[N][i] = kCrt<N>.epilogue_weights[i];
}

template <int... I>
constexpr WeightTable weight_table(std::integer_sequence<int, I...>) {
  WeightTable table = {};
  (set_weights<kMinModuli + I>(table), ...);
  return table;
}

__constant__ WeightTable kWeights =
    weight_table(std::make_integer_sequence<int, kMaxModuli - kMinModuli + 1>());

// The tiles of a worker, by the kind of output, and the weights of their epilogues.
template <MmaOutput kKind>
__device__ __forceinline__ auto tile_scheduler(const MmaArguments& args, uint32_t first) {
  if constexpr (is_flagged(kKind)) {
    const int count = args.count != nullptr ? *args.count : args.moduli;
    return ListedTileScheduler(args.grid, args.list, args.batch, args.moduli, count, args.kp,
                               first);
  } else {
    return TileScheduler(args.grid, first);
  }
}

// Whether the rhs of a product is the lhs once more: that of a symmetric square.
template <MmaOutput kKind>
__device__ __forceinline__ bool lhs_is_rhs(const MmaArguments& args) {
  return is_flagged(kKind) && args.symmetry != nullptr && (*args.symmetry & kFromOwnColumns) == 0;
}

// What is multiplied of k.
__device__ __forceinline__ int k_begin(const Tile&) { return 0; }
__device__ __forceinline__ int k_begin(const ListedTile& tile) { return tile.k_begin; }
__device__ __forceinline__ int k_end(const MmaArguments& args, const Tile&) { return args.kp; }
__device__ __forceinline__ int k_end(const MmaArguments&, const ListedTile& tile) {
  return tile.k_end;
}

__device__ __forceinline__ uint32_t epilogue_weights(const MmaArguments& args, const TileScheduler&,
                                                     int modulus) {
  return args.constants.weights[modulus];
}

__device__ __forceinline__ uint32_t epilogue_weights(const MmaArguments&,
                                                     const ListedTileScheduler& scheduler,
                                                     int modulus) {
  return kWeights.at[scheduler.count()][modulus];
}

// The residues of four accumulators as the bytes of a word.
__device__ __forceinline__ uint32_t residues(uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t weights, const Modulus& modulus) {
  return pack_low_bytes(epilogue_float(a0, weights, modulus), epilogue_float(a1, weights, modulus),
                        epilogue_float(a2, weights, modulus), epilogue_float(a3, weights, modulus));
}

// Replaces an accumulator by a congruent number below 2^18: room for kKBlock more products.
__device__ __forceinline__ uint32_t fold(uint32_t acc, const Modulus& modulus) {
  return dot4(acc, modulus.narrow_weights[0], 0);
}

// The residues of a group's earlier moduli, four outputs a word, while its last one is multiplied:
// the second-last's in registers, the one's before in shared memory, [kWords][kThreads].
template <int kWords, int kThreads>
class PartialCrt {
 public:
  static constexpr int kSharedBytes = kWords * kThreads * sizeof(uint32_t);

  __device__ __forceinline__ PartialCrt(void* shared, int thread)
      : older_(static_cast<uint32_t*>(shared) + thread) {}

  __device__ __forceinline__ void push(int word, uint32_t residues) {
    older_[word * kThreads] = newer_[word];
    newer_[word] = residues;
  }

  // y_g of output 4 word + byte. Where a group has no such modulus the multiplier is 0.
  __device__ __forceinline__ uint32_t join(int word, int byte, uint32_t last,
                                           const uint32_t (&multiplier)[kGroupSize]) const {
    return __byte_perm(older_[word * kThreads], 0, 0x4440 + byte) * multiplier[0] +
           __byte_perm(newer_[word], 0, 0x4440 + byte) * multiplier[1] +
           (last & 255) * multiplier[2];
  }

 private:
  uint32_t* older_;
  uint32_t newer_[kWords] = {};
};

// Multipliers in the order of PartialCrt: the last modulus last.
__device__ __forceinline__ void group_multipliers(const EpilogueConstants& constants,
                                                  const TileModuli& moduli,
                                                  uint32_t (&multiplier)[kGroupSize]) {
  const int last = moduli.first + moduli.count - 1;
#pragma unroll
  for (int i = 0; i < kGroupSize; ++i) {
    multiplier[kGroupSize - 1 - i] = i < moduli.count ? constants.multiplier[last - i] : 0;
  }
}

// For a block of 64 rhs rows in their natural order: word i of lane q holds columns 2q, 2q + 1 of
// the eights 2i and 2i + 1. Exchanges words inside the quad until lane q owns columns 16q..16q+15.
__device__ __forceinline__ void transpose_quad(uint32_t (&word)[4], int lane) {
  const bool odd = lane & 1, high = lane & 2;
  const uint32_t a = __shfl_xor_sync(~0u, odd ? word[0] : word[1], 1);
  const uint32_t b = __shfl_xor_sync(~0u, odd ? word[2] : word[3], 1);
  word[0] = odd ? a : word[0], word[1] = odd ? word[1] : a;
  word[2] = odd ? b : word[2], word[3] = odd ? word[3] : b;
  const uint32_t c = __shfl_xor_sync(~0u, high ? word[0] : word[2], 2);
  const uint32_t d = __shfl_xor_sync(~0u, high ? word[1] : word[3], 2);
  word[0] = high ? c : word[0], word[2] = high ? word[2] : c;
  word[1] = high ? d : word[1], word[3] = high ? word[3] : d;
  const uint32_t low01 = __byte_perm(word[0], word[1], 0x5410);
  const uint32_t low23 = __byte_perm(word[2], word[3], 0x5410);
  const uint32_t high01 = __byte_perm(word[0], word[1], 0x7632);
  const uint32_t high23 = __byte_perm(word[2], word[3], 0x7632);
  word[0] = low01, word[1] = low23, word[2] = high01, word[3] = high23;
}

}  // namespace ozaki
