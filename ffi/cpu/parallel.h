// A parallel loop over fixed tasks on somebody else's thread pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace ozaki {

// Where helper tasks may run. The default has no thread to offer: loops run serially.
struct Scheduler {
  std::function<void(std::function<void()>)> schedule = nullptr;
  int64_t threads = 1;
};

// Calls fn(i) once for every i in [0, count), in no particular order. The split into tasks is the
// caller's and must not depend on the number of threads, so that it cannot change a result.
//
// The calling thread takes tasks too and waits at the end only for tasks that other threads have
// already begun. It never waits for a helper that is still queued, so a loop started on a thread of
// a full pool cannot deadlock; a helper that comes late finds nothing left and touches only the
// shared counters.
template <typename F>
void parallel_for(const Scheduler& scheduler, int64_t count, const F& fn) {
  const int64_t helpers = scheduler.schedule ? std::min(scheduler.threads, count) - 1 : 0;
  if (helpers <= 0) {
    for (int64_t i = 0; i < count; ++i) fn(i);
    return;
  }

  struct State {
    std::atomic<int64_t> next{0}, done{0};
    std::mutex mutex;
    std::condition_variable finished;
  };
  auto state = std::make_shared<State>();

  // `fn` is the caller's: valid while a task that was taken is not done.
  auto work = [state, count, fn = &fn] {
    for (int64_t i; (i = state->next.fetch_add(1)) < count;) {
      (*fn)(i);
      if (state->done.fetch_add(1) + 1 == count) {
        std::lock_guard<std::mutex> lock(state->mutex);
        state->finished.notify_one();
      }
    }
  };
  for (int64_t i = 0; i < helpers; ++i) scheduler.schedule(work);
  work();

  std::unique_lock<std::mutex> lock(state->mutex);
  state->finished.wait(lock, [&] { return state->done.load() == count; });
}

}  // namespace ozaki
