// Checks a grouped product, chooses a kernel for it and launches that.
#include "grouped_mma.h"

#include <initializer_list>
#include <string>

#include "mma_heuristics.h"
#include "mma_launch.h"

namespace ozaki {
namespace {

constexpr int64_t kMaxExtent = INT32_MAX - 1024;  // tiles beyond the edge still fit an int

Status check(const GroupedMma& mma) {
  const auto out_of_range = [](const char* name, int64_t value, int64_t low, int64_t high) {
    return Status(std::string("grouped_mma: ") + name + " is " + std::to_string(value) +
                  ", allowed are " + std::to_string(low) + " to " + std::to_string(high));
  };
  const int least = mma.kind == MmaOutput::kFlaggedSums ? 1 : kMinModuli;
  const int most = mma.set == ModulusSet::kComplex ? kMaxComplexModuli : kMaxModuli;
  if (mma.moduli < least || mma.moduli > most) {
    return out_of_range("the number of moduli", mma.moduli, least, most);
  }
  const int64_t max_batch = kMaxProblems / mma.moduli;
  if (mma.batch < 1 || mma.batch > max_batch) return out_of_range("batch", mma.batch, 1, max_batch);
  if (mma.m < 1 || mma.m > kMaxExtent) return out_of_range("m", mma.m, 1, kMaxExtent);
  if (mma.n < 1 || mma.n > kMaxExtent) return out_of_range("n", mma.n, 1, kMaxExtent);
  if (mma.kp < 16 || mma.kp > kMaxExtent) return out_of_range("kp", mma.kp, 16, kMaxExtent);
  if (mma.kp % 16 != 0) {
    return Status("grouped_mma: kp is " + std::to_string(mma.kp) + ", not a multiple of 16");
  }
  for (const void* buffer :
       std::initializer_list<const void*>{mma.lhs, mma.rhs, mma.output, mma.list}) {
    if (reinterpret_cast<uintptr_t>(buffer) % 16 != 0) {
      return Status("grouped_mma: a buffer is not aligned to 16 bytes");
    }
  }
  return Status();
}

}  // namespace

Status launch_grouped_mma(const GroupedMma& mma, const Device& device, cudaStream_t stream,
                          MmaPath path) {
  OZAKI_RETURN_IF_ERROR(check(mma));
  if (device.capability < 80) {
    return Status("grouped_mma: compute capability " + std::to_string(device.capability / 10) +
                  "." + std::to_string(device.capability % 10) +
                  " is not supported: needed is 8.0 or later");
  }
  bool wgmma = false;
  if (device.capability == 90 && path != MmaPath::kMmaSync) {
    OZAKI_RETURN_IF_ERROR(wgmma_available(device, &wgmma));
  }
  if (path == MmaPath::kWgmma && !wgmma) {
    return Status(
        "grouped_mma: wgmma needs a device of compute capability 9.0 and a build for 90a");
  }
  return launch_grouped_mma(mma, choose_tile_shape(mma, wgmma, device.multiprocessors), device,
                            stream);
}

Status launch_grouped_mma(const GroupedMma& mma, TileShape shape, const Device& device,
                          cudaStream_t stream) {
  MmaArguments args = {};
  args.lhs = mma.lhs;
  args.rhs = mma.rhs;
  args.output = mma.output;
  args.batch = static_cast<int>(mma.batch);
  args.m = static_cast<int>(mma.m);
  args.n = static_cast<int>(mma.n);
  args.np = static_cast<int>((mma.n + 15) / 16 * 16);
  args.kp = static_cast<int>(mma.kp);
  args.moduli = static_cast<int>(mma.moduli);
  args.constants = epilogue_constants(args.moduli, mma.set);
  if (!make_tile_grid(mma, shape, &args.grid)) {
    return Status("grouped_mma: more than 2^30 tiles in the output of one modulus");
  }
  args.list = mma.list;
  args.count = mma.count;
  args.symmetry = mma.symmetry;
  if (mma.list != nullptr) {
    OZAKI_RETURN_IF_ERROR(
        launch_tile_list(mma.flagged, args.grid, args.batch, args.kp, mma.list, device, stream));
  }
  const auto launch = is_wgmma(shape) ? launch_wgmma : launch_mma_sync;
  return launch(args, shape, mma.kind, device, stream);
}

}  // namespace ozaki
