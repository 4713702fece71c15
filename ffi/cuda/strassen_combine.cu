#include <utility>

#include "combine_outputs.cuh"
#include "common/complex.h"
#include "common/crt.h"
#include "common/scale.h"
#include "for_each_index.cuh"
#include "launch.h"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "special_outputs.cuh"
#include "strassen.h"

namespace ozaki {
namespace {

constexpr int kWarps = 2, kThreads = 32 * kWarps;
constexpr int kMinBlocks = 8;
constexpr int kQuarters = 4;  // of C, 2 * (lower) + (right)
constexpr int kParts = 4;     // float64s of a quarter's row that a lane takes, neighbours

// A residue of C is at most five times p, and that of a complex number's real part the sum of two:
// so are the y_g, and S of theirs.
static_assert(5 * kMaxModuli < kQuotientLimit && 10 * kMaxComplexModuli < kQuotientLimit);

struct Grid {
  int64_t half_m, half_n, np;
  uint32_t column_blocks;  // warps a row
};

// Residues modulo p of C, two columns in the halves of a word, from those of the products.
__device__ __forceinline__ void sum_products(const uint32_t (&product)[kStrassenProducts],
                                             uint32_t p, uint32_t (&c)[kQuarters]) {
  const uint32_t both = p << 16 | p;
  const uint32_t u = product[0] - product[2] + 2 * both;
  c[0] = product[0] - product[1] + both;
  c[1] = u + product[6] - product[4];
  c[2] = u + product[5] - product[3];
  c[3] = u + product[5] + product[6];
}

// Adds two columns' multiples to y. The first one's is that of the whole word: 2^16 times the
// second one's too much.
__device__ __forceinline__ void add_halves(uint32_t x, uint32_t multiplier, uint32_t& first,
                                           uint32_t& second) {
  first += x * multiplier;
  second += (x >> 16) * multiplier;
}

// The residues of a group of moduli, of every product and root.
template <typename Word, int kRuns>
using GroupResidues = Word[3][kRuns][32];

// Real products: a lane has four columns, a word of a product and modulus.
struct Real {
  static constexpr ModulusSet kSet = ModulusSet::kReal;
  static constexpr int kRoots = 1, kRuns = kStrassenProducts, kMaxCount = kMaxModuli;
  using Word = uint32_t;

  // y_g of a lane's outputs.
  template <int N, int kGroup>
  static __device__ __forceinline__ void partial_sums(const GroupResidues<Word, kRuns>& residues,
                                                      uint32_t (&y)[kQuarters][kParts]) {
    constexpr auto moduli = kModuli;
    constexpr Crt<N> crt = kCrt<N>;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int z = 3 * kGroup; z < min(3 * kGroup + 3, N); ++z) {
      uint32_t word[kRuns];
#pragma unroll
      for (int run = 0; run < kRuns; ++run) word[run] = residues[z % 3][run][lane];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        uint32_t product[kStrassenProducts], c[kQuarters];
#pragma unroll
        for (int j = 0; j < kStrassenProducts; ++j) {
          product[j] = __byte_perm(word[j], 0, e == 0 ? 0x4240 : 0x4341);
        }
        sum_products(product, moduli[z].p, c);
#pragma unroll
        for (int q = 0; q < kQuarters; ++q) {
          add_halves(c[q], crt.multiplier[z], y[q][e], y[q][e + 2]);
        }
      }
    }
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) {
      y[q][0] -= y[q][2] << 16;
      y[q][1] -= y[q][3] << 16;
    }
  }

  static __device__ __forceinline__ uint64_t special(const Combine& args, int64_t batch, int64_t i,
                                                     int64_t j, int) {
    return special_output(args, batch, i, j);
  }
};

// Complex products: a lane has both parts of two columns, a half word of a product, root and
// modulus.
struct Complex {
  static constexpr ModulusSet kSet = ModulusSet::kComplex;
  static constexpr int kRoots = 2, kRuns = 2 * kStrassenProducts, kMaxCount = kMaxComplexModuli;
  using Word = uint16_t;

  template <int N, int kGroup>
  static __device__ __forceinline__ void partial_sums(const GroupResidues<Word, kRuns>& residues,
                                                      uint32_t (&y)[kQuarters][kParts]) {
    constexpr auto moduli = kComplexModuli;
    constexpr auto units = kImaginaryUnits;
    constexpr Crt<N> crt = kComplexCrt<N>;
    constexpr uint32_t kProduct = moduli[3 * kGroup].p * crt.multiplier[3 * kGroup];
    const int lane = threadIdx.x % 32;
    uint32_t quotients[kQuarters][2] = {};
    uint32_t start = 0;
#pragma unroll
    for (int z = 3 * kGroup; z < min(3 * kGroup + 3, N); ++z) {
      uint32_t c[2][kQuarters];
#pragma unroll
      for (int root = 0; root < 2; ++root) {
        uint32_t product[kStrassenProducts];
#pragma unroll
        for (int j = 0; j < kStrassenProducts; ++j) {
          product[j] = __byte_perm(residues[z % 3][2 * j + root][lane], 0, 0x4140);
        }
        sum_products(product, moduli[z].p, c[root]);
      }
      const ImaginarySummand summand(moduli[z], units[z], crt.multiplier[z]);
      start += summand.start;
      const uint32_t zero = moduli[z].float_zero - kFloatBits + 5 * moduli[z].p;
#pragma unroll
      for (int q = 0; q < kQuarters; ++q) {
        add_halves(c[0][q] + c[1][q], crt.multiplier[z], y[q][0], y[q][2]);
        const uint32_t difference = c[1][q] - c[0][q] + (zero << 16 | zero);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const uint32_t x = __byte_perm(difference, kFloatBits, e == 0 ? 0x7410 : 0x7432);
          y[q][2 * e + 1] += x * summand.weight;
          quotients[q][e] += summand.quotient(x);
        }
      }
    }
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) {
      y[q][0] -= y[q][2] << 16;
#pragma unroll
      for (int e = 0; e < 2; ++e) y[q][2 * e + 1] += start - quotients[q][e] * kProduct;
    }
  }

  static __device__ __forceinline__ uint64_t special(const Combine& args, int64_t batch, int64_t i,
                                                     int64_t j, int part) {
    const ulonglong2 parts = complex_special_output(args, batch, i, j);
    return part == 0 ? parts.x : parts.y;
  }
};

OZAKI_HD int groups_of(int moduli) { return (moduli + 2) / 3; }

// A part of the output (i, j) where it is no ordinary number: that of a row or a column with
// non-finite elements, or one that round_to_normal leaves.
template <int N, typename Field>
__device__ __noinline__ uint64_t rare_output(const Combine& args, int64_t batch, int64_t i,
                                             int64_t j, int part,
                                             const uint32_t (&y)[Crt<N>::kGroups]) {
  const int32_t scale_a = args.scale_a[batch * args.a_layout.rows + i];
  const int32_t scale_b = args.scale_b[batch * args.b_layout.rows + j];
  if (!is_sentinel(scale_a) && !is_sentinel(scale_b)) {
    return round_to_float64(reconstruct<N, Field::kSet>(y), scale_a + scale_b);
  }
  if (scale_a == kScaleNaN || scale_b == kScaleNaN) return kNaNBits;
  return Field::special(args, batch, i, j, part);
}

// What a warp keeps of a group of moduli: the residues of the products, then the sums y_g they
// become.
template <typename Field>
union GroupBuffer {
  GroupResidues<typename Field::Word, Field::kRuns> residues;
  uint4 y[kQuarters][32];
};

// The outputs of a warp, a part of a row of all quarters, from the first N of `moduli` moduli.
template <int N, typename Field>
__device__ __forceinline__ void write_outputs(const Combine& args, const Grid& grid, int moduli,
                                              GroupBuffer<Field>* group) {
  constexpr int kGroups = Crt<N>::kGroups, kRoots = Field::kRoots, kRuns = Field::kRuns;
  constexpr int kColumns = kParts / kRoots;  // of a lane
  constexpr int kWidth = 32 * kColumns;      // of a warp
  const int lane = threadIdx.x % 32;

  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  const uint32_t row = warp / grid.column_blocks;  // of a quarter, counted through the batch
  const int64_t first_column = int64_t{warp - row * grid.column_blocks} * kWidth;
  const int64_t m = args.a_layout.rows, n = args.b_layout.rows;
  const uint32_t batch = row / static_cast<uint32_t>(grid.half_m);
  const uint32_t upper_row = row - batch * static_cast<uint32_t>(grid.half_m);
  if (batch >= args.a_layout.batch) return;

  // All residues are requested at once. kCopyLanes lanes copy the kWidth bytes of a product, root
  // and modulus, the next ones at the same time those of the next root or product.
  constexpr int kCopyLanes = kWidth / 16, kAtATime = 32 / kCopyLanes;
  const int64_t plane = grid.half_m * grid.np, run_bytes = moduli * plane;
  const int64_t column = first_column + lane % kCopyLanes * 16;
  const uint8_t* v = static_cast<const uint8_t*>(args.v) + upper_row * grid.np + column +
                     (int64_t{batch} * kRuns + lane / kCopyLanes) * run_bytes;
#pragma unroll
  for (int z = 0; z < N; ++z, v += plane) {
#pragma unroll
    for (int first = 0; first < kRuns; first += kAtATime) {
      if (const int run = first + lane / kCopyLanes; run < kRuns) {
        auto* target = &group[z / 3].residues[z % 3][run][lane % kCopyLanes * kAtATime];
        ptx::cp_async_16(ptx::shared_address(target), v + first * run_bytes, column < grid.np);
      }
    }
    if (z % 3 == 2 || z == N - 1) ptx::cp_async_commit();
  }

  // A lane turns its columns of a group into partial sums of the four quarters.
  for_each_index(
      [&](auto index) {
        constexpr int g = decltype(index)::value;
        ptx::cp_async_wait<kGroups - 1 - g>();
        __syncwarp();
        uint32_t y[kQuarters][kParts] = {};
        Field::template partial_sums<N, g>(group[g].residues, y);
        __syncwarp();
#pragma unroll
        for (int q = 0; q < kQuarters; ++q) {
          group[g].y[q][lane] = make_uint4(y[q][0], y[q][1], y[q][2], y[q][3]);
        }
        return true;
      },
      std::make_integer_sequence<int, kGroups>());

  // Its outputs, those of a quarter at a time.
#pragma unroll 1
  for (int right = 0; right < 2; ++right) {
    const int64_t of_quarter = first_column + lane * kColumns, j = of_quarter + right * grid.half_n;
    const int count = static_cast<int>(
        clamp<int64_t>((right == 0 ? grid.half_n : n) - j, 0, kColumns));  // 0 beyond the edge
    if (count == 0) break;
    const int32_t* const scales = args.scale_b + batch * n + j;
    int32_t scale_b[kColumns];
#pragma unroll
    for (int e = 0; e < kColumns; ++e) scale_b[e] = e < count ? scales[e] : 0;

#pragma unroll 1
    for (int lower = 0; lower < 2; ++lower) {
      const int64_t i = upper_row + lower * grid.half_m;
      if (i >= m) break;
      const int32_t scale_a = args.scale_a[batch * m + i];

      uint4 y_of[kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) y_of[g] = group[g].y[2 * lower + right][lane];
      const auto y_of_part = [&](int e, uint32_t (&y)[kGroups]) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          y[g] = e == 0 ? y_of[g].x : e == 1 ? y_of[g].y : e == 2 ? y_of[g].z : y_of[g].w;
        }
      };
      Limbs<Crt<N>::kLimbs> x[kParts];
      int scale[kParts];
      int32_t smallest = scale_a;
#pragma unroll
      for (int e = 0; e < kParts; ++e) {
        uint32_t y[kGroups];
        y_of_part(e, y);
        x[e] = reconstruct<N, Field::kSet>(y);
        scale[e] = sum_of_scales(scale_a, scale_b[e / kRoots]);
        smallest = min(smallest, scale_b[e / kRoots]);
      }
      uint64_t c[kParts];
      const bool normal = round_to_normal(x, scale, c);
      if (!normal || is_sentinel(smallest)) {
#pragma unroll
        for (int e = 0; e < kParts; ++e) {
          uint32_t y[kGroups];
          y_of_part(e, y);
          if (e / kRoots < count) {
            c[e] = rare_output<N, Field>(args, batch, i, j + e / kRoots, e % kRoots, y);
          }
        }
      }

      unsigned long long* const target =
          reinterpret_cast<unsigned long long*>(args.c) + ((batch * m + i) * n + j) * kRoots;
      if (count == kColumns && reinterpret_cast<uintptr_t>(target) % 16 == 0) {
        __stcs(reinterpret_cast<ulonglong2*>(target), make_ulonglong2(c[0], c[1]));
        __stcs(reinterpret_cast<ulonglong2*>(target) + 1, make_ulonglong2(c[2], c[3]));
      } else {
#pragma unroll
        for (int e = 0; e < kParts; ++e) {
          if (e / kRoots < count) __stcs(target + e, c[e]);
        }
      }
    }
  }
}

// The number of moduli is the same for all threads: one of the bodies runs.
template <typename Field, int... kOffsets>
__device__ __forceinline__ void write_counted(int count, const Combine& args, const Grid& grid,
                                              int moduli, GroupBuffer<Field>* group,
                                              std::integer_sequence<int, kOffsets...>) {
  (void)((count == kMinModuli + kOffsets &&
          (write_outputs<kMinModuli + kOffsets, Field>(args, grid, moduli, group), true)) ||
         ...);
}

template <typename Field>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    strassen_combine_kernel(const __grid_constant__ Combine args, const Grid grid, int moduli,
                            const int32_t* count) {
  extern __shared__ uint4 shared[];  // [kWarps][groups of moduli] GroupBuffer<Field>
  GroupBuffer<Field>* const groups = reinterpret_cast<GroupBuffer<Field>*>(shared);
  write_counted<Field>(count != nullptr ? *count : moduli, args, grid, moduli,
                       groups + threadIdx.x / 32 * groups_of(moduli),
                       std::make_integer_sequence<int, Field::kMaxCount - kMinModuli + 1>());
}

template <typename Field>
Status launch_field(const Combine& combine, int moduli, const int32_t* count, const Device& device,
                    cudaStream_t stream) {
  constexpr int kWidth = 32 * kParts / Field::kRoots;
  Grid grid;
  grid.half_m = strassen_half(combine.a_layout.rows);
  grid.half_n = strassen_half(combine.b_layout.rows);
  grid.np = padded(grid.half_n);
  grid.column_blocks = static_cast<uint32_t>((grid.half_n + kWidth - 1) / kWidth);
  const int64_t warps = combine.a_layout.batch * grid.half_m * grid.column_blocks;
  if (warps > INT32_MAX) return Status("strassen_combine: more than 2^31 warps for the result");
  const int bytes = kWarps * groups_of(moduli) * sizeof(GroupBuffer<Field>);
  return launch("strassen_combine_kernel", strassen_combine_kernel<Field>,
                {(warps + kWarps - 1) / kWarps, kThreads, bytes}, device, stream, combine, grid,
                moduli, count);
}

}  // namespace

Status launch_strassen_combine(const Combine& combine, int moduli, const int32_t* count,
                               const Device& device, cudaStream_t stream) {
  OZAKI_RETURN_IF_ERROR(check_strassen("strassen_combine", combine.a_layout, moduli));
  OZAKI_RETURN_IF_ERROR(check_strassen("strassen_combine", combine.b_layout, moduli));
  if (combine.kind != MmaOutput::kResidues) {
    return Status("strassen_combine: needs the residues of the products, not their partial CRT");
  }
  return combine.a_layout.parts == 2 ? launch_field<Complex>(combine, moduli, count, device, stream)
                                     : launch_field<Real>(combine, moduli, count, device, stream);
}

}  // namespace ozaki
