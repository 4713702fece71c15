// The residues of integers by warps, whose byte products the matrix unit adds up: the bytes of 16
// integers times the byte weights of eight moduli are one small matrix product.
#pragma once

#include <cstdint>

#include "common/quantize.h"
#include "common/residue.h"
#include "common/tables.h"
#include "mma_epilogue.cuh"
#include "operand_tile.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"

namespace ozaki {

// A warp takes 128 integers at a time, eight runs of 16 consecutive ones. A lane brings two
// neighbours of each half (pass_element) and leaves with the residues of run lane / 4.
constexpr int kRun = kResidueRun, kRuns = 8, kPassElements = kRun * kRuns;

__device__ __forceinline__ int run_of_lane(int lane, int half) { return 4 * half + lane / 8; }
__device__ __forceinline__ int element_of_lane(int lane) { return lane % 8 * 2; }  // of its run
__device__ __forceinline__ int pass_element(int lane, int half) {
  return run_of_lane(lane, half) * kRun + element_of_lane(lane);
}

// A quantized element, offset so that it is not negative, in words.
struct Narrow {
  static constexpr int kMaxModuli = kMaxNarrowModuli;
  static constexpr int kUnits = kRun / 2;  // of 16 bytes a run: two elements each
  uint32_t words[2];

  Narrow() = default;
  __device__ __forceinline__ explicit Narrow(int64_t x)
      : words{static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32) ^ 1u << 31} {}
  __device__ __forceinline__ Narrow(uint64_t bits, int32_t scale)
      : Narrow(quantize_narrow(bits, scale)) {}
};

struct Wide {
  static constexpr int kMaxModuli = ozaki::kMaxModuli;
  static constexpr int kUnits = kRun;  // an element each
  uint32_t words[3];

  Wide() = default;
  __device__ __forceinline__ Wide(uint64_t bits, int32_t scale) {
    const Int96 x = quantize_wide(bits, scale);
    words[0] = x.low;
    words[1] = static_cast<uint32_t>(x.high);
    words[2] = static_cast<uint32_t>(x.high >> 32) ^ 1u << 31;
  }
};

// What a lane needs for eight moduli: its part of the weights, as the right operand of the matrix
// product for the first and the second element of a unit, and the constants of the two moduli whose
// residues it gets, 2 (lane % 4) and the one after.
struct __align__(16) LaneModuli {
  uint32_t zero[4];  // two of each, as the matrix unit takes them
  uint32_t weights[2];
  float inverse[2];
  uint32_t minus_p[2];
};

constexpr int kModuliBlock = 8;
constexpr int kMaxModuliBlocks = (kMaxModuli + kModuliBlock - 1) / kModuliBlock;

__device__ const ModulusTable kDeviceModuli = kModuli;

// The constants of lane index % 32 for the moduli from 8 (index / 32) on.
template <typename Integer>
__device__ __forceinline__ LaneModuli lane_moduli(int index) {
  constexpr bool kNarrow = Integer::kUnits < kRun;
  const int block = index / 32 * kModuliBlock, column = index % 32 / 4, part = index % 4;
  const auto modulus = [block](int i) -> const Modulus& {
    return kDeviceModuli.at[min(block + i, kMaxModuli - 1)];
  };
  LaneModuli lane;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if constexpr (kNarrow) {
      lane.weights[e] = part / 2 == e ? modulus(column).narrow_weights[part % 2] : 0;
    } else {
      lane.weights[e] = part < 3 ? modulus(column).wide_weights[part] : 0;
    }
    const Modulus& m = modulus(2 * part + e);
    lane.zero[e] = lane.zero[e + 2] = kNarrow ? m.narrow_zero : m.wide_zero;
    lane.inverse[e] = m.inverse;
    lane.minus_p[e] = 0u - m.p;
  }
  return lane;
}

// Shared memory: the constants of a CTA's lanes, and of each warp the integers of a pass.
template <typename Integer>
struct ResidueBuffers {
  static constexpr int kModuliBytes = kMaxModuliBlocks * 32 * sizeof(LaneModuli);
  static constexpr int kPassBytes = kRuns * Integer::kUnits * 16;
};

// To be followed by a barrier.
template <typename Integer>
__device__ __forceinline__ void fill_lane_moduli(LaneModuli* shared, int moduli) {
  const int count = (moduli + kModuliBlock - 1) / kModuliBlock * 32;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += blockDim.x) shared[i] = lane_moduli<Integer>(i);
}

// Units are swizzled: neither side of the exchange between lanes meets bank conflicts.
template <typename Integer>
__device__ __forceinline__ uint32_t unit_offset(int run, int unit) {
  return (run * Integer::kUnits + (unit ^ run)) * 16;
}

// Writes the residues of a pass. x: of this lane, see above; pass: address of the warp's buffer;
// target: where the residues of the lane's run by the first modulus go, plane bytes before those by
// the next, or null; of the run, bytes from `elements` on are zero.
template <typename Integer>
__device__ __forceinline__ void store_pass(const Integer (&x)[4], uint32_t pass,
                                           const LaneModuli* constants, int moduli,
                                               uint8_t* target, int64_t plane, int elements) {
  constexpr bool kNarrow = Integer::kUnits < kRun;
  constexpr int kMatrices = Integer::kUnits;
  const int lane = threadIdx.x % 32, part = lane % 4;
  __syncwarp();  // the buffer's last integers have been read
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int run = run_of_lane(lane, half), element = element_of_lane(lane);
    const Integer &a = x[2 * half], &b = x[2 * half + 1];
    if constexpr (kNarrow) {
      ptx::store_shared_16(pass + unit_offset<Integer>(run, element / 2), a.words[0], a.words[1],
                           b.words[0], b.words[1]);
    } else {
      ptx::store_shared_16(pass + unit_offset<Integer>(run, element), a.words[0], a.words[1],
                           a.words[2], 0);
      ptx::store_shared_16(pass + unit_offset<Integer>(run, element + 1), b.words[0], b.words[1],
                           b.words[2], 0);
    }
  }
  __syncwarp();
  uint32_t a[kMatrices / 4][4];  // unit i of run lane / 4: bytes 4 part .. 4 part + 3
#pragma unroll
  for (int i = 0; i < kMatrices / 4; ++i) {
    ptx::ldmatrix_x4(a[i], pass + unit_offset<Integer>(lane % 8, 4 * i + lane / 8));
  }

  const int stored = target != nullptr ? moduli : 0;
  const LaneModuli* of_lane = constants + lane;
  uint8_t* to = target + 2 * part * plane;
#pragma unroll 1
  for (int modulus = 2 * part; modulus < moduli + 2 * part; modulus += kModuliBlock) {
    const LaneModuli c = *of_lane;
    uint32_t word[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // elements 4i .. 4i + 3
      uint32_t sum[2][4];
      if constexpr (kNarrow) {
        const uint32_t a0 = a[i / 2][i % 2 * 2], a1 = a[i / 2][i % 2 * 2 + 1];
        ptx::mma_m16n8k16(sum[0], a0, a1, c.weights[0], c.zero);
        ptx::mma_m16n8k16(sum[1], a0, a1, c.weights[1], c.zero);
      } else {
        ptx::mma_m16n8k16(sum[0], a[i][0], a[i][2], c.weights[0], c.zero);
        ptx::mma_m16n8k16(sum[1], a[i][1], a[i][3], c.weights[1], c.zero);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto residue = [&](uint32_t s) { return mod_p_float(s, c.inverse[e], c.minus_p[e]); };
        word[e][i] = pack_low_bytes(residue(sum[0][e]), residue(sum[1][e]), residue(sum[0][e + 2]),
                                    residue(sum[1][e + 2]));
      }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (modulus + e < stored) {
        *reinterpret_cast<uint4*>(to + e * plane) =
            make_uint4(word[e][0], word[e][1], word[e][2], word[e][3]);
      }
    }
    to += kModuliBlock * plane;
    of_lane += 32;
  }

  // Padding is zero to the byte: a residue of 0 may be p.
  if (elements < kRun) {
#pragma unroll 1
    for (int modulus = 0; modulus < stored; ++modulus, target += plane) {
      if (modulus % kModuliBlock / 2 != part) continue;
#pragma unroll 1
      for (int i = max(elements, 0); i < kRun; ++i) target[i] = 0;
    }
  }
}

}  // namespace ozaki
