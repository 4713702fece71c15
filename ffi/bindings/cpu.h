// What the CPU's handlers share.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "bindings/ladder.h"
#include "cpu/parallel.h"

namespace ozaki {

inline Scheduler scheduler(ffi::ThreadPool& pool) {
  return {[&pool](std::function<void()> task) { pool.Schedule(std::move(task)); },
          std::max<int64_t>(pool.num_threads(), 1)};
}

LadderHandlers ladder_handlers();

}  // namespace ozaki
