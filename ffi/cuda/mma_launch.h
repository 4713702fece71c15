// What the host code passes to the kernels of the grouped product.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "grouped_mma.h"
#include "mma_constants.h"

namespace ozaki {

// Shapes of the tiles of a launch, rows x columns of a CTA: one instantiation of a kernel each.
enum class TileShape {
  kWgmma128x256,
  kWgmma128x256Cluster,  // pairs of CTAs, neighbours along m, share the rhs tile
  kWgmma128x128,
  kWgmma128x64,
  kMmaSync256x128,  // of residues alone: all accumulators and nothing else fits a thread
  kMmaSync128x128,
  kMmaSync64x64,
  kMmaSync32x32,
};

// The tiles of all problems. A problem is what one tile of the output belongs to: a modulus, or for
// the partial CRT a group of moduli, of a batch element. group_m as in tile_scheduler.cuh.
struct TileGrid {
  uint32_t problems, tiles_m, tiles_n, group_m;
  uint32_t tiles;                         // of one problem
  int rows, columns;                      // of a tile
  uint32_t workers;                       // among which tiles are dealt out
  uint32_t problem_stride, index_stride;  // from one tile of a worker to its next

  int64_t all_tiles() const { return int64_t{problems} * tiles; }

  void set_workers(uint32_t count) {
    workers = count;
    problem_stride = workers / tiles;
    index_stride = workers % tiles;
  }
};

constexpr int64_t kMaxProblems = 1 << 30;

// By value into constant memory: nothing to upload, nothing shared between launches or devices.
struct MmaArguments {
  const uint8_t* lhs;
  const uint8_t* rhs;
  void* output;
  int batch, moduli, m, n, np, kp;
  const TileList* list;  // of flagged kinds
  const int32_t* count;
  const uint32_t* symmetry;
  TileGrid grid;
  EpilogueConstants constants;
};

// launch_grouped_mma on tiles of a given shape; the product has been checked.
Status launch_grouped_mma(const GroupedMma& mma, TileShape shape, const Device& device,
                          cudaStream_t stream);

// Whether the code loaded for the current device is sm_90a's: a build may lack it.
Status wgmma_available(const Device& device, bool* available);

// launch(kind), with the kind as a constant.
template <typename Launch>
Status with_constant(MmaOutput kind, const Launch& launch) {
  switch (kind) {
    case MmaOutput::kResidues:
      return launch(std::integral_constant<MmaOutput, MmaOutput::kResidues>());
    case MmaOutput::kPartialCrt:
      return launch(std::integral_constant<MmaOutput, MmaOutput::kPartialCrt>());
    case MmaOutput::kFlaggedResidues:
      return launch(std::integral_constant<MmaOutput, MmaOutput::kFlaggedResidues>());
    case MmaOutput::kFlaggedSums:
      return launch(std::integral_constant<MmaOutput, MmaOutput::kFlaggedSums>());
  }
  return Status("grouped_mma: not a kind of output");
}

Status launch_wgmma(const MmaArguments& arguments, TileShape shape, MmaOutput kind,
                    const Device& device, cudaStream_t stream);
Status launch_mma_sync(const MmaArguments& arguments, TileShape shape, MmaOutput kind,
                       const Device& device, cudaStream_t stream);

}  // namespace ozaki
