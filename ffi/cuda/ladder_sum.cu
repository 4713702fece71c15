#include <type_traits>

#include "chain_sum.h"
#include "common/accumulate.h"
#include "common/chains.h"
#include "flagged_walk.cuh"
#include "join_threads.cuh"
#include "launch.h"
#include "ptx/dependent_launch.cuh"

namespace ozaki {
namespace {

// A CTA takes a block of kRows x kColumns outputs, a thread kOwnRows x kOwnColumns of them.
constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kRows = 64, kColumns = 64, kOwnRows = 4, kOwnColumns = 2;
constexpr int kBlocksAcross = kTile / kColumns, kBlocksPerTile = kTile / kRows * kBlocksAcross;
static_assert(kRows * kColumns == kOwnRows * kOwnColumns * kThreads);
// Up to so many outputs of a block are summed a warp each.
constexpr int kFew = 256;

// An element as the sums of a block want it: the fraction at the top of 64 bits, but for as many
// bits as bring the product of two to units of 2^-32 of the window; exponent and sign in one word,
// which adds up: exponent 4 + sign. The sum's bit 0 is the product's sign.
struct Operand {
  uint32_t high, low;
  int tag;
};
constexpr int kLeftShift = 11, kRightShift = 9;
static_assert(kLeftShift + kRightShift + 106 - kWindow == 32, "the word below the window");
constexpr int kNoTerm = -(1 << 15);  // of a zero: below the tags of all products

__device__ __forceinline__ Operand operand(uint64_t bits, int shift) {
  if (is_zero(bits)) return {0, 0, kNoTerm};
  const Normalised x = normalise(bits);
  const uint64_t fraction = x.fraction << shift;
  return {static_cast<uint32_t>(fraction >> 32), static_cast<uint32_t>(fraction),
          x.exponent * 4 + (x.negative ? 1 : 0)};
}

constexpr int kDepth = 16;

template <int kCount>
struct Stage {
  static constexpr int kPitch = kCount + 4;
  uint32_t high[kDepth][kPitch], low[kDepth][kPitch];
  int tag[kDepth][kPitch];
};

struct Shared {
  union {
    struct {
      Stage<kRows> a;
      Stage<kColumns> b;
    };
    unsigned long long digits[kWarps][kDigits];
  };
  uint16_t listed[kRows * kColumns];
  int count;
};

// The rows of a stage from an operand: those of the lhs, columns of the rhs. Zeros elsewhere.
template <int kCount>
__device__ __forceinline__ void load_stage(const double* source, const Layout& layout,
                                           int64_t batch, int64_t first_row, int64_t first_k,
                                           int shift, Stage<kCount>& stage) {
  const bool contiguous = layout.stride_k == 1;
  const double* const x = source + layout.offset(batch, first_row, first_k);
  // Unknown here: addresses are computed anew for every stage, not kept beside the sums.
  int self = threadIdx.x;
  asm volatile("" : "+r"(self));
#pragma unroll
  for (int i = 0; i < kCount * kDepth / kThreads; ++i) {
    const int index = i * kThreads + self;
    const int row = contiguous ? index / kDepth : index % kCount;
    const int h = contiguous ? index % kDepth : index / kCount;
    const bool inside = first_row + row < layout.rows && first_k + h < layout.k;
    const Operand element =
        operand(inside ? load_bits(x + row * layout.stride_r + h * layout.stride_k) : 0, shift);
    stage.high[h][row] = element.high;
    stage.low[h][row] = element.low;
    stage.tag[h][row] = element.tag;
  }
}

// Words of neighbouring rows or columns.
template <int kCount>
struct Words {
  uint32_t at[kCount];
};

template <int kCount>
__device__ __forceinline__ Words<kCount> load_words(const void* source) {
  using Vector = std::conditional_t<kCount == 4, uint4, uint2>;
  static_assert(sizeof(Vector) == sizeof(Words<kCount>));
  Words<kCount> words;
  const Vector vector = *static_cast<const Vector*>(source);
  memcpy(&words, &vector, sizeof words);
  return words;
}

struct Accumulator {
  uint32_t at[4] = {};
};

// Adds a product whose exponent is `distance` below the top of the window. Returns whether it was
// cut.
template <bool kExact>
__device__ __forceinline__ bool add_product(Accumulator& sum, uint32_t a_high, uint32_t a_low,
                                            uint32_t b_high, uint32_t b_low, int distance,
                                            uint32_t negative) {
  const uint64_t p0 = uint64_t{a_low} * b_low;
  const uint64_t p1 = uint64_t{a_high} * b_low + (p0 >> 32);
  const uint64_t p2 = uint64_t{a_low} * b_high + static_cast<uint32_t>(p1);
  const uint64_t p3 = uint64_t{a_high} * b_high + (p1 >> 32) + (p2 >> 32);
  // The product is w2 w1 w0 and a word below.
  uint32_t w0 = static_cast<uint32_t>(p2), w1 = static_cast<uint32_t>(p3);
  uint32_t w2 = static_cast<uint32_t>(p3 >> 32);
  uint32_t rest = static_cast<uint32_t>(p0);
  if (distance >= 32) {
    if (kExact) rest |= w0 | (distance >= 64 ? w1 : 0) | (distance >= 96 ? w2 : 0);
    w0 = distance >= 96 ? 0 : distance >= 64 ? w2 : w1;
    w1 = distance >= 64 ? 0 : w2;
    w2 = 0;
  }
  if (kExact) rest |= w0 & ((1u << (distance & 31)) - 1);
  const uint32_t sign = 0 - negative;
  const uint32_t z0 = __funnelshift_r(w0, w1, distance) ^ sign;
  const uint32_t z1 = __funnelshift_r(w1, w2, distance) ^ sign;
  const uint32_t z2 = (w2 >> (distance & 31)) ^ sign;
  asm("{\n"
      ".reg .u32 none;\n"
      "add.cc.u32 none, %7, 1;\n"  // carries where the sign is all ones
      "addc.cc.u32 %0, %0, %4;\n"
      "addc.cc.u32 %1, %1, %5;\n"
      "addc.cc.u32 %2, %2, %6;\n"
      "addc.u32 %3, %3, %7;\n"
      "}"
      : "+r"(sum.at[0]), "+r"(sum.at[1]), "+r"(sum.at[2]), "+r"(sum.at[3])
      : "r"(z0), "r"(z1), "r"(z2), "r"(sign));
  return kExact && rest != 0;
}

// A block of outputs: its first row and column.
struct Block {
  uint32_t batch, row, column;
};

__device__ __forceinline__ uint64_t* first_output(const LadderSum& args, Block block) {
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  return reinterpret_cast<uint64_t*>(args.c) + (block.batch * m + block.row) * n + block.column;
}

template <bool kExact>
__device__ __forceinline__ void store(const WindowSum& sum, int top, int64_t k, uint64_t* target,
                                      bool& undecided) {
  // The sum is that of k terms, each cut by less than a unit.
  const int64_t units = kExact && sum.cut ? k : 0;
  const uint64_t bits = sum.rounded(top, -units);
  undecided = kExact && sum.rounded(top, units) != bits;
  if (!undecided) *target = bits;
}

// An output correctly rounded whatever it takes, by a warp.
__device__ __forceinline__ void store_exact(const LadderSum& args, const uint64_t* a,
                                            const uint64_t* b, unsigned long long* digits,
                                            uint64_t* target) {
  const int lane = threadIdx.x % 32;
  for (int q = lane; q < kDigits; q += 32) digits[q] = 0;
  __syncwarp();
#pragma unroll 1
  for (int64_t h = lane; h < args.a_layout.k; h += 32) {
    const uint64_t x = a[h * args.a_layout.stride_k], y = b[h * args.b_layout.stride_k];
    if (is_zero(x) || is_zero(y)) continue;
    add_exactly(normalise(x), normalise(y), [&](int q, int64_t piece) {
      atomicAdd(digits + q, static_cast<unsigned long long>(piece));
    });
  }
  __syncwarp();
  if (lane == 0) *target = round_digits(reinterpret_cast<int64_t*>(digits));
  __syncwarp();
}

// One output by a warp. Returns whether it is undecided. Apart: the registers are for the sums of
// whole blocks.
template <bool kExact>
__device__ __noinline__ bool sum_output(const LadderSum& args, const uint64_t* a, const uint64_t* b,
                                        uint64_t* target) {
  const int64_t k = args.a_layout.k;
  const int lane = threadIdx.x % 32;
  int top = kNoTerm;
  for (int64_t h = lane; h < k; h += 32) {
    const uint64_t x = a[h * args.a_layout.stride_k], y = b[h * args.b_layout.stride_k];
    if (!is_zero(x) && !is_zero(y)) top = max(top, magnitude_exponent(x) + magnitude_exponent(y));
  }
  top = __reduce_max_sync(~0u, top);
  WindowSum sum;
  if (top != kNoTerm) {
#pragma unroll 1
    for (int64_t h = lane; h < k; h += 32) {
      const uint64_t x = a[h * args.a_layout.stride_k], y = b[h * args.b_layout.stride_k];
      if (!is_zero(x) && !is_zero(y)) sum.add(normalise(x), normalise(y), top);
    }
  } else {
    top = 0;
  }
  for (int i = 16; i > 0; i >>= 1) {
    WindowSum other;
    other.high = __shfl_xor_sync(~0u, sum.high, i);
    other.low = __shfl_xor_sync(~0u, sum.low, i);
    other.cut = __shfl_xor_sync(~0u, sum.cut, i);
    sum.join(other);
  }
  bool undecided = false;
  if (lane == 0) store<kExact>(sum, top, k, target, undecided);
  return __any_sync(~0u, undecided);
}

// All outputs of a block, those wanted are stored: bit kOwnColumns i + j of `wanted` for a thread's
// output (i, j).
template <bool kExact>
__device__ __forceinline__ void sum_block(const LadderSum& args, Block block, int row, int column,
                                          uint32_t wanted, Shared& shared) {
  const int64_t n = args.b_layout.rows, k = args.a_layout.k;
  const auto load_stages = [&](int64_t first) {
    __syncthreads();
    load_stage(args.a, args.a_layout, block.batch, block.row, first, kLeftShift, shared.a);
    load_stage(args.b, args.b_layout, block.batch, block.column, first, kRightShift, shared.b);
    __syncthreads();
  };
  int top[kOwnRows][kOwnColumns];  // largest tag
#pragma unroll
  for (auto& of_row : top) {
#pragma unroll
    for (int& t : of_row) t = INT32_MIN;
  }
  for (int64_t first = 0; first < k; first += kDepth) {
    load_stages(first);
#pragma unroll 4
    for (int h = 0; h < kDepth; ++h) {
      const auto a = load_words<kOwnRows>(&shared.a.tag[h][row]);
      const auto b = load_words<kOwnColumns>(&shared.b.tag[h][column]);
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
          top[i][j] = max(top[i][j], static_cast<int>(a.at[i] + b.at[j]));
        }
      }
    }
  }

  Accumulator sum[kOwnRows][kOwnColumns];
  constexpr int kOutputs = kOwnRows * kOwnColumns;
  uint32_t cut = wanted << kOutputs;  // in one register
#pragma unroll
  for (auto& of_row : top) {
#pragma unroll
    for (int& t : of_row) t |= 3;  // the distance of a tag is (top - tag) >> 2
  }
  for (int64_t first = 0; first < k; first += kDepth) {
    load_stages(first);
#pragma unroll 1
    for (int h = 0; h < kDepth; ++h) {
      const auto a_high = load_words<kOwnRows>(&shared.a.high[h][row]);
      const auto a_low = load_words<kOwnRows>(&shared.a.low[h][row]);
      const auto a_tag = load_words<kOwnRows>(&shared.a.tag[h][row]);
      const auto b_high = load_words<kOwnColumns>(&shared.b.high[h][column]);
      const auto b_low = load_words<kOwnColumns>(&shared.b.low[h][column]);
      const auto b_tag = load_words<kOwnColumns>(&shared.b.tag[h][column]);
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
          const uint32_t tag = a_tag.at[i] + b_tag.at[j];
          const int distance = static_cast<int>((static_cast<uint32_t>(top[i][j]) - tag) >> 2);
          const bool lost = add_product<kExact>(sum[i][j], a_high.at[i], a_low.at[i], b_high.at[j],
                                                b_low.at[j], distance, tag & 1);
          if (kExact) cut |= static_cast<uint32_t>(lost) << (i * kOwnColumns + j);
        }
      }
    }
  }

  uint64_t* const c = first_output(args, block);
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const int at = i * kOwnColumns + j;
      if ((cut >> kOutputs >> at & 1) == 0) continue;
      WindowSum of_output;
      of_output.low = uint64_t{sum[i][j].at[1]} << 32 | sum[i][j].at[0];
      of_output.high = uint64_t{sum[i][j].at[3]} << 32 | sum[i][j].at[2];
      of_output.cut = cut >> at & 1;
      bool undecided;
      store<kExact>(of_output, top[i][j] >> 2, k, c + (row + i) * n + column + j, undecided);
      if (undecided) {
        shared.listed[atomicAdd(&shared.count, 1)] =
            static_cast<uint16_t>((row + i) * kColumns + column + j);
      }
    }
  }
}

template <bool kExact>
__device__ __forceinline__ void process(const LadderSum& args, Block block, Shared& shared) {
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows, np = padded(n);
  constexpr int kAcross = kColumns / kOwnColumns;
  const int row = threadIdx.x / kAcross * kOwnRows, column = threadIdx.x % kAcross * kOwnColumns;
  const uint8_t* const rung = args.rung + (block.batch * m + block.row) * np + block.column;
  uint32_t wanted = 0;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    if (block.row + row + i >= m || block.column + column >= n) continue;
    const uint16_t rungs = *reinterpret_cast<const uint16_t*>(rung + (row + i) * np + column);
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const bool of_rung = block.column + column + j < n &&
                           (args.flagged.wanted >> (rungs >> (8 * j) & 31) & 1) != 0;
      // Of sums in float64 the window gives what they leave.
      const bool open =
          of_rung && (args.group == 0 ||
                      first_output(args, block)[(row + i) * n + column + j] == kLeftToWindow);
      wanted |= static_cast<uint32_t>(open) << (i * kOwnColumns + j);
    }
  }
  // The block before has left the shared memory.
  const int count = sum_of_threads(__popc(wanted), shared.count);
  if (count == 0) return;
  const bool few = count <= kFew;
  __syncthreads();
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  if (few) {
    for (uint32_t rest = wanted; rest != 0; rest &= rest - 1) {
      const int at = __ffs(rest) - 1;
      shared.listed[atomicAdd(&shared.count, 1)] =
          static_cast<uint16_t>((row + at / kOwnColumns) * kColumns + column + at % kOwnColumns);
    }
  } else {
    sum_block<kExact>(args, block, row, column, wanted, shared);
  }
  // What is listed takes a warp each: all that is wanted, or what a window has not decided.
  if (!few && !kExact) return;
  __syncthreads();
  const int warp = threadIdx.x / 32;
  for (int index = warp; index < shared.count; index += kWarps) {
    const int i = shared.listed[index] / kColumns, j = shared.listed[index] % kColumns;
    const auto* a = reinterpret_cast<const uint64_t*>(args.a) +
                    args.a_layout.offset(block.batch, block.row + i, 0);
    const auto* b = reinterpret_cast<const uint64_t*>(args.b) +
                    args.b_layout.offset(block.batch, block.column + j, 0);
    uint64_t* const target = first_output(args, block) + i * n + j;
    const bool undecided = !few || sum_output<kExact>(args, a, b, target);
    if constexpr (kExact) {
      if (undecided) store_exact(args, a, b, shared.digits[warp], target);
    }
  }
}

template <bool kExact>
__global__ void __launch_bounds__(kThreads)
    ladder_sum_kernel(const __grid_constant__ LadderSum args, int64_t blocks) {
  __shared__ __align__(16) Shared shared;
  ptx::wait_for_previous();
  for_parts_of_flagged<kThreads, kBlocksPerTile>(args.flagged, blocks, [&](const PartOfTile& at) {
    const int64_t i = at.row + at.part / kBlocksAcross * kRows;
    const int64_t j = at.column + at.part % kBlocksAcross * kColumns;
    if (i >= args.a_layout.rows || j >= args.b_layout.rows) return;
    process<kExact>(
        args, {static_cast<uint32_t>(at.batch), static_cast<uint32_t>(i), static_cast<uint32_t>(j)},
        shared);
  });
}

}  // namespace

Status launch_ladder_sum(const LadderSum& sum, const Device& device, cudaStream_t stream) {
  if (sum.group > 0) {
    OZAKI_RETURN_IF_ERROR(launch_chain_sum_dense(sum, device, stream));
    OZAKI_RETURN_IF_ERROR(launch_chain_sum_few(sum, device, stream));
  }
  const auto kernel = sum.exact ? ladder_sum_kernel<true> : ladder_sum_kernel<false>;
  const int64_t blocks = sum.flagged.count(sum.a_layout.batch) * kBlocksPerTile;
  return launch_resident("ladder_sum_kernel", kernel, {blocks, kThreads, 0, 1, sum.group > 0},
                         device, stream, sum, blocks);
}

}  // namespace ozaki
