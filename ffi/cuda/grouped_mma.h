// The grouped INT8 matrix product: every modulus of every batch element in one launch, reduced
// modulo p and multiplied by its CRT inverse before it leaves the kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/constants.h"
#include "device.h"
#include "flagged_tiles.h"

namespace ozaki {

// With v_i = inv_i sum_h lhs[b,i,row,h] rhs[b,i,column,h] mod p_i, a number in [0, p_i]:
enum class MmaOutput {
  kResidues,    // uint8 [batch, moduli, m, np]: v_i
  kPartialCrt,  // uint32 [batch, groups, m, np]: y_g = sum_i v_i Q_g / p_i over a group of three
  // In the flagged tiles alone, without what those skip of k; the others keep what they hold.
  kFlaggedResidues,  // v_i of a product with the first *count moduli
  kFlaggedSums,      // int32 [batch, moduli, m, np]: the sums themselves, below 2^31
};

OZAKI_HD constexpr bool is_flagged(MmaOutput kind) {
  return kind == MmaOutput::kFlaggedResidues || kind == MmaOutput::kFlaggedSums;
}
OZAKI_HD constexpr bool is_bytes(MmaOutput kind) {
  return kind == MmaOutput::kResidues || kind == MmaOutput::kFlaggedResidues;
}

struct GroupedMma {
  const uint8_t* lhs;  // [batch, moduli, m, kp]
  const uint8_t* rhs;  // [batch, moduli, n, kp]
  void* output;        // np = n rounded up to a multiple of 16; the columns from n on: anything
  int64_t batch, moduli, m, n;
  int64_t kp;  // contraction length, padded with zeros to a multiple of 16
  MmaOutput kind = MmaOutput::kResidues;
  ModulusSet set = ModulusSet::kReal;  // inv_i is half of it for complex products
  // Of flagged kinds:
  FlaggedTiles flagged = {};
  TileList* list = nullptr;        // scratch, tile_list_bytes; nullptr: all tiles
  const int32_t* count = nullptr;  // of kFlaggedResidues, [1]: at most `moduli`
  // Of a square, [1]: without kFromOwnColumns (symmetry.h) the lhs is the rhs, too.
  const uint32_t* symmetry = nullptr;
};

enum class MmaPath {
  kAuto,     // the device's best
  kMmaSync,  // sm_80 and later: mma.sync
  kWgmma,    // sm_90: wgmma and bulk tensor copies
};

// Enqueues the product on `stream` of `device`, the current one. Allocates and waits for nothing.
Status launch_grouped_mma(const GroupedMma& mma, const Device& device, cudaStream_t stream,
                          MmaPath path = MmaPath::kAuto);

}  // namespace ozaki
