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

// Where a thread's part of the output and its first pieces of a stage begin.
template <typename S>
struct Position {
  int lane, warp_m, warp_n;
  uint32_t lhs_piece, rhs_piece;  // of the first 32 k

  __device__ __forceinline__ Position()
      : lane(threadIdx.x % 32),
        warp_m(threadIdx.x / 32 / S::kWarpsN),
        warp_n(threadIdx.x / 32 % S::kWarpsN),
        lhs_piece(piece_offset(warp_m * S::kWarpM + lane % 16, lane / 16)),
        rhs_piece(piece_offset(S::kBlockM + warp_n * S::kWarpN + lane % 8 + lane / 16 * 8,
                               lane / 8 % 2)) {}

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
    const uint32_t lhs_at = stage + (of.lhs_piece ^ k * 32),
                   rhs_at = stage + (of.rhs_piece ^ k * 32);
#pragma unroll
    for (int i = 0; i < S::kFragmentsM; ++i) ptx::ldmatrix_x4(lhs[i], lhs_at + i * 16 * 64);
#pragma unroll
    for (int i = 0; i < S::kFragmentsN / 2; ++i) ptx::ldmatrix_x4(rhs[i], rhs_at + i * 16 * 64);
  }

  __device__ __forceinline__ void multiply(Accumulator<S>& acc) const {
#pragma unroll
    for (int i = 0; i < S::kFragmentsM; ++i) {
#pragma unroll
      for (int place = 0; place < S::kFragmentsN; ++place) {
        // There and back: neighbours share a fragment, which is then read once.
        const int j = i % 2 == 0 ? place : S::kFragmentsN - 1 - place;
        ptx::mma_m16n8k32(acc[i][j], lhs[i], rhs[j / 2][j % 2 * 2], rhs[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
};

// The residues of one modulus, [m, kp] and [n, kp], and how many of every row are multiplied.
struct Operands {
  const uint8_t *lhs, *rhs;
  int m, n, kp, k;
};

// acc = the sums over k of a CTA's tile of the product, from row first_row and column first_column
// on; folded modulo p where k is too long for them. Begins with a barrier.
template <typename S, bool kPermuted, bool kFolded>
__device__ __forceinline__ void multiply(const Operands& of, int first_row, int first_column,
                                         uint32_t stages, const Modulus& modulus,
                                         const Position<S>& position, Accumulator<S>& acc) {
  // This thread copies piece `piece` of every kRowsPerPass-th row from `slot`. Rows outside the
  // operands are their last ones again, whose outputs are not stored; pieces outside are zeros.
  const int slot = threadIdx.x / S::kPieces, piece = threadIdx.x % S::kPieces;
  const uint32_t destination = stages + piece_offset(slot, piece);
  const int k_tiles = (of.k + S::kBlockK - 1) / S::kBlockK;
  const uint8_t *lhs[S::kLhsPasses], *rhs[S::kRhsPasses];
#pragma unroll
  for (int pass = 0; pass < S::kLhsPasses; ++pass) {
    const int row = min(first_row + slot + pass * S::kRowsPerPass, of.m - 1);
    lhs[pass] = of.lhs + static_cast<int64_t>(row) * of.kp + piece * 16;
  }
#pragma unroll
  for (int pass = 0; pass < S::kRhsPasses; ++pass) {
    const int place = rhs_row<S, kPermuted>(slot) + rhs_row<S, kPermuted>(pass * S::kRowsPerPass);
    const int row = min(first_column + place, of.n - 1);
    rhs[pass] = of.rhs + static_cast<int64_t>(row) * of.kp + piece * 16;
  }
  const auto copy_stage = [&](int k, uint32_t stage) {
    const bool inside = k * S::kBlockK + piece * 16 < of.k;
#pragma unroll
    for (int pass = 0; pass < S::kLhsPasses; ++pass) {
      const int place = pass * S::kRowsPerPass;
      ptx::cp_async_16(destination + stage + place * S::kBlockK, lhs[pass], inside);
      lhs[pass] += S::kBlockK;
    }
#pragma unroll
    for (int pass = 0; pass < S::kRhsPasses; ++pass) {
      const int place = S::kBlockM + pass * S::kRowsPerPass;
      ptx::cp_async_16(destination + stage + place * S::kBlockK, rhs[pass], inside);
      rhs[pass] += S::kBlockK;
    }
  };

  __syncthreads();  // every warp has left the stages of the product before
#pragma unroll
  for (int k = 0; k < S::kStages - 1; ++k) {
    copy_stage(k, k * S::kStageBytes);
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
  uint32_t from = 0, before = (S::kStages - 1) * S::kStageBytes;  // stages k and k - 1
  fragments[0].load(stages, position, 0);
  for (int k = 0; k < k_tiles;) {
    const int k_end = kFolded ? min(k + kKBlock / S::kBlockK, k_tiles) : k_tiles;
    for (; k < k_end; ++k) {
      fragments[1].load(stages + from, position, 1);
      copy_stage(k + S::kStages - 1, before);
      ptx::cp_async_commit();
      fragments[0].multiply(acc);
      ptx::cp_async_wait<S::kStages - 2>();
      __syncthreads();
      before = from;
      from = from == (S::kStages - 1) * S::kStageBytes ? 0 : from + S::kStageBytes;
      fragments[0].load(stages + from, position, 0);  // after the last stage: anything, not used
      fragments[1].multiply(acc);
    }
    if (kFolded && k < k_tiles) {
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
  ptx::cp_async_wait<0>();  // the zeros past the end
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
