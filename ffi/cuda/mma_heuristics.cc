#include "mma_heuristics.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace ozaki {
namespace {

// A model of a kernel's time, in clocks of an H200, fitted to measurements on one.
struct TileModel {
  TileShape shape;
  bool wgmma;
  int rows, columns;  // computed at a time by one worker, which is a CTA or a cluster
  double workers;     // per multiprocessor
  int block_k;
  double step;       // a worker's block_k, while all workers are busy
  double unaligned;  // the same where rows of operands straddle cache lines
  double tile;       // a tile's time beside its steps
  double launch;     // beyond that of the simplest kernel
};

constexpr TileModel kModels[] = {
    {TileShape::kWgmma128x256, true, 128, 256, 1, 128, 1040, 1500, 2300, 3000},
    {TileShape::kWgmma128x256Cluster, true, 256, 256, 0.5, 128, 1024, 1130, 2600, 3000},
    {TileShape::kWgmma128x128, true, 128, 128, 1, 128, 620, 1100, 1500, 3000},
    {TileShape::kWgmma128x64, true, 128, 64, 1, 128, 420, 800, 1000, 3000},
    {TileShape::kMmaSync256x128, false, 256, 128, 1, 64, 870, 1040, 5300, 0},
    {TileShape::kMmaSync128x128, false, 128, 128, 2, 64, 960, 1150, 2600, 0},
    {TileShape::kMmaSync64x64, false, 64, 64, 4, 64, 900, 1250, 2300, 0},
    {TileShape::kMmaSync32x32, false, 32, 32, 16, 64, 1600, 2200, 2600, 0},
};

const TileModel& model_of(TileShape shape) {
  return *std::find_if(std::begin(kModels), std::end(kModels),
                       [shape](const TileModel& model) { return model.shape == shape; });
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t problems(const GroupedMma& mma) {
  const bool groups = mma.kind == MmaOutput::kPartialCrt;
  return mma.batch * (groups ? ceil_div(mma.moduli, kGroupSize) : mma.moduli);
}

double estimated_clocks(const GroupedMma& mma, const TileModel& model, int multiprocessors) {
  const double tiles = static_cast<double>(ceil_div(mma.m, model.rows)) *
                       ceil_div(mma.n, model.columns) * problems(mma);
  const double workers = std::max(1.0, std::floor(multiprocessors * model.workers));
  // Workers that are alone on their multiprocessor, or few on the device, step faster.
  const double load = std::clamp(tiles / workers, 0.5, 1.0);
  const double parts = mma.kind == MmaOutput::kPartialCrt ? kGroupSize : 1;
  const double steps = static_cast<double>(ceil_div(mma.kp, model.block_k)) * parts;
  const double step = mma.kp % 128 == 0 ? model.step : model.unaligned;
  return model.launch + std::ceil(tiles / workers) * (steps * step * load + model.tile);
}

}  // namespace

bool is_wgmma(TileShape shape) { return model_of(shape).wgmma; }

TileShape choose_tile_shape(const GroupedMma& mma, bool wgmma, int multiprocessors) {
  TileShape best = TileShape::kMmaSync128x128;
  double best_clocks = std::numeric_limits<double>::infinity();
  for (const TileModel& model : kModels) {
    if (model.wgmma && !wgmma) continue;
    if (model.shape == TileShape::kMmaSync256x128 && mma.kind != MmaOutput::kResidues) continue;
    const double clocks = estimated_clocks(mma, model, multiprocessors);
    if (clocks < best_clocks) best = model.shape, best_clocks = clocks;
  }
  return best;
}

bool make_tile_grid(const GroupedMma& mma, TileShape shape, TileGrid* grid) {
  const TileModel& model = model_of(shape);
  const int64_t tiles_m = ceil_div(mma.m, model.rows), tiles_n = ceil_div(mma.n, model.columns);
  if (tiles_m * tiles_n > 1 << 30) return false;
  // So many rows of tiles share the rhs tiles that go by; more where k is long.
  const int group_rows = mma.kp >= 16384 ? 3072 : 2048;
  grid->problems = static_cast<uint32_t>(problems(mma));
  grid->tiles_m = static_cast<uint32_t>(tiles_m);
  grid->tiles_n = static_cast<uint32_t>(tiles_n);
  grid->group_m = static_cast<uint32_t>(std::max(1, group_rows / model.rows));
  grid->tiles = static_cast<uint32_t>(tiles_m * tiles_n);
  grid->rows = model.rows;
  grid->columns = model.columns;
  return true;
}

}  // namespace ozaki
