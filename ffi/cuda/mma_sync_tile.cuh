// A tile of a grouped product without anything that is Hopper's own: cp.async into a ring of
// shared-memory stages, ldmatrix, mma.sync.
#pragma once

#include <cstdint>

#include "mma_epilogue.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"

namespace ozaki::mma_sync {

template <int kBlockM_, int kBlockN_, int kWarpsM_, int kWarpsN_, int kStages_,
          int kCtasPerMultiprocessor_>
struct Shape {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kBlockK = 64;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
  static constexpr int kWarpM = kBlockM / kWarpsM, kWarpN = kBlockN / kWarpsN;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kStages = kStages_;
  static constexpr int kCtasPerMultiprocessor = kCtasPerMultiprocessor_;

  // A stage holds lhs rows, then rhs rows, of four 16-byte pieces.
  static constexpr int kPieces = kBlockK / 16;
  static constexpr int kRowsPerPass = kThreads / kPieces;
  static constexpr int kLhsPasses = kBlockM / kRowsPerPass, kRhsPasses = kBlockN / kRowsPerPass;
  static constexpr int kStageBytes = (kBlockM + kBlockN) * kBlockK;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 8;
  static constexpr int kWords = kFragmentsM * kFragmentsN;  // of four residues each, of a thread
  static constexpr int kColumns = kWarpN / 4;               // consecutive output columns of a lane

  static_assert(kBlockM % kRowsPerPass == 0 && kBlockN % kRowsPerPass == 0, "whole passes");
  static_assert(kWarpN % kRowsPerPass == 0 || kRowsPerPass % kWarpN == 0,
                "the permutation of rhs rows splits into a thread's part and a pass's part");
  static_assert(kKBlock % kBlockK == 0, "accumulators are folded between stages");
};

template <typename S>
using Accumulator = uint32_t[S::kFragmentsM][S::kFragmentsN][4];

// Pieces are swizzled so that the eight rows of an ldmatrix meet eight different bank groups.
__device__ __forceinline__ uint32_t piece_offset(int row, int piece) {
  return row * 64 + ((piece ^ row >> 1) & 3) * 16;
}

// The rhs row of a tile that belongs in a place of shared memory. The rows of a warp are permuted
// where bytes are stored (mma_epilogue.cuh).
template <typename S, bool kPermuted>
__device__ __forceinline__ int rhs_row(int place) {
  if constexpr (!kPermuted) return place;
  return place / S::kWarpN * S::kWarpN + permuted_row<S::kColumns>(place % S::kWarpN);
}

// Where a thread's part of the output begins.
template <typename S>
struct Position {
  int lane, warp_m, warp_n;

  __device__ __forceinline__ Position()
      : lane(threadIdx.x % 32),
        warp_m(threadIdx.x / 32 / S::kWarpsN),
        warp_n(threadIdx.x / 32 % S::kWarpsN) {}

  // Of acc[i][j][2 half + e]: row(i, half), and column(j) + e where rhs rows are not permuted.
  __device__ __forceinline__ int row(int i, int half) const {
    return warp_m * S::kWarpM + lane / 4 + i * 16 + half * 8;
  }
  __device__ __forceinline__ int column(int j) const {
    return warp_n * S::kWarpN + j * 8 + lane % 4 * 2;
  }
  // Of the first of kColumns where they are.
  __device__ __forceinline__ int permuted_column() const {
    return warp_n * S::kWarpN + S::kColumns * (lane % 4);
  }
};

// Lhs and rhs fragments of a warp for 32 consecutive k.
template <typename S>
struct Fragments {
  uint32_t lhs[S::kFragmentsM][4];
  uint32_t rhs[S::kFragmentsN / 2][4];

  __device__ __forceinline__ void load(uint32_t stage, const Position<S>& of, int k) {
    const int row = of.warp_m * S::kWarpM + of.lane % 16;
    const int column = S::kBlockM + of.warp_n * S::kWarpN + of.lane % 8 + of.lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < S::kFragmentsM; ++i) {
      ptx::ldmatrix_x4(lhs[i], stage + i * 16 * 64 + piece_offset(row, k * 2 + of.lane / 16));
    }
#pragma unroll
    for (int i = 0; i < S::kFragmentsN / 2; ++i) {
      ptx::ldmatrix_x4(rhs[i], stage + i * 16 * 64 + piece_offset(column, k * 2 + of.lane / 8 % 2));
    }
  }

  __device__ __forceinline__ void multiply(Accumulator<S>& acc) const {
#pragma unroll
    for (int i = 0; i < S::kFragmentsM; ++i) {
#pragma unroll
      for (int j = 0; j < S::kFragmentsN; ++j) {
        ptx::mma_m16n8k32(acc[i][j], lhs[i], rhs[j / 2][j % 2 * 2], rhs[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
};

// The residues of one modulus: [m, kp] and [n, kp].
struct Operands {
  const uint8_t *lhs, *rhs;
  int m, n, kp;
};

// acc = the sums over k of a CTA's tile of the product, from row first_row and column first_column
// on; folded modulo p where k is too long for them. Begins with a barrier.
template <typename S, bool kPermuted, bool kFolded>
__device__ __forceinline__ void multiply(const Operands& of, int first_row, int first_column,
                                         uint32_t stages, const Modulus& modulus,
                                         const Position<S>& position, Accumulator<S>& acc) {
  // This thread copies piece `piece` of every kRowsPerPass-th row from `slot`.
  const int slot = threadIdx.x / S::kPieces, piece = threadIdx.x % S::kPieces;
  const uint32_t destination = stages + piece_offset(slot, piece);
  const int k_tiles = (of.kp + S::kBlockK - 1) / S::kBlockK;
  const size_t row_bytes = of.kp;
  const int lhs_row_0 = first_row + slot, rhs_row_0 = first_column + rhs_row<S, kPermuted>(slot);
  const uint8_t* lhs = of.lhs + lhs_row_0 * row_bytes + piece * 16;
  const uint8_t* rhs = of.rhs + rhs_row_0 * row_bytes + piece * 16;

  // Rows and pieces outside the operands arrive as zeros; nothing outside is read.
  const auto copy_stage = [&](int k) {
    const uint32_t to = destination + k % S::kStages * S::kStageBytes;
    const bool inside = k * S::kBlockK + piece * 16 < of.kp;
#pragma unroll
    for (int pass = 0; pass < S::kLhsPasses; ++pass) {
      const int row = pass * S::kRowsPerPass;
      const bool valid = inside && lhs_row_0 + row < of.m;
      ptx::cp_async_16(to + row * 64, valid ? lhs + row * row_bytes : of.lhs, valid);
    }
#pragma unroll
    for (int pass = 0; pass < S::kRhsPasses; ++pass) {
      const int place = pass * S::kRowsPerPass, row = rhs_row<S, kPermuted>(place);
      const bool valid = inside && rhs_row_0 + row < of.n;
      ptx::cp_async_16(to + (S::kBlockM + place) * 64, valid ? rhs + row * row_bytes : of.rhs,
                       valid);
    }
    lhs += S::kBlockK;
    rhs += S::kBlockK;
  };

  __syncthreads();  // every warp has left the stages of the product before
#pragma unroll
  for (int k = 0; k < S::kStages - 1; ++k) {
    if (k < k_tiles) copy_stage(k);
    ptx::cp_async_commit();
  }
  ptx::cp_async_wait<S::kStages - 2>();
  __syncthreads();

#pragma unroll
  for (auto& row : acc) {
#pragma unroll
    for (auto& fragment : row) {
#pragma unroll
      for (uint32_t& a : fragment) a = 0;
    }
  }
  // The fragments of the next 32 k are loaded while the last ones are multiplied.
  Fragments<S> fragments[2];
  fragments[0].load(stages, position, 0);
  for (int k = 0; k < k_tiles; ++k) {
    const uint32_t stage = stages + k % S::kStages * S::kStageBytes;
    fragments[1].load(stage, position, 1);
    if (k + S::kStages - 1 < k_tiles) copy_stage(k + S::kStages - 1);
    ptx::cp_async_commit();
    fragments[0].multiply(acc);
    ptx::cp_async_wait<S::kStages - 2>();
    __syncthreads();
    if (k + 1 < k_tiles) {
      fragments[0].load(stages + (k + 1) % S::kStages * S::kStageBytes, position, 0);
    }
    fragments[1].multiply(acc);
    if (kFolded && (k + 1) % (kKBlock / S::kBlockK) == 0 && k + 1 < k_tiles) {
#pragma unroll
      for (auto& row : acc) {
#pragma unroll
        for (auto& fragment : row) {
#pragma unroll
          for (uint32_t& a : fragment) a = fold(a, modulus);
        }
      }
    }
  }
}

// Stores the tile's residues as bytes of v, [m, np]; rhs rows were permuted.
template <typename S>
__device__ __forceinline__ void store_residues(const Accumulator<S>& acc,
                                               const Position<S>& position, int first_row,
                                               int first_column, uint32_t weights,
                                               const Modulus& modulus, uint8_t* v, int m, int np) {
  const int column = first_column + position.permuted_column();
#pragma unroll
  for (int i = 0; i < S::kFragmentsM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + position.row(i, half);
      uint32_t word[S::kColumns / 4];
#pragma unroll
      for (int w = 0; w < S::kColumns / 4; ++w) {
        const auto &a = acc[i][2 * w], &b = acc[i][2 * w + 1];
        word[w] =
            residues(a[half * 2], a[half * 2 + 1], b[half * 2], b[half * 2 + 1], weights, modulus);
      }
      if (row < m && column < np) {
        void* const at = v + static_cast<size_t>(row) * np + column;
        if constexpr (S::kColumns == 16) {
          *static_cast<uint4*>(at) = make_uint4(word[0], word[1], word[2], word[3]);
        } else {
          static_assert(S::kColumns == 8);
          *static_cast<uint2*>(at) = make_uint2(word[0], word[1]);
        }
      }
    }
  }
}

// Stores word(i, j, e), e < 4, of what belongs to acc[i][j][e] as words of y, [m, np]; rhs rows were
// not permuted.
template <typename S, typename Word>
__device__ __forceinline__ void store_words(const Position<S>& position, int first_row,
                                            int first_column, uint32_t* y, int m, int np,
                                            const Word& word) {
#pragma unroll
  for (int i = 0; i < S::kFragmentsM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + position.row(i, half);
#pragma unroll
      for (int j = 0; j < S::kFragmentsN; ++j) {
        const uint2 pair = make_uint2(word(i, j, half * 2), word(i, j, half * 2 + 1));
        const int column = first_column + position.column(j);
        if (row < m && column < np) {
          *reinterpret_cast<uint2*>(y + static_cast<size_t>(row) * np + column) = pair;
        }
      }
    }
  }
}

}  // namespace ozaki::mma_sync
