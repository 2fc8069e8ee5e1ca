// A parallel loop over units of work. Each free thread takes the next unit.
#pragma once

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <atomic>
#include <cstdint>

namespace gdpa::cpu {

/// Calls work(0) ... work(count - 1), each once, on at most `threads` threads including the calling thread, and returns
/// when all calls have returned. With one thread it wakes no other thread. If `work` throws an exception, the function
/// throws it after the other threads have stopped.
template <class Work>
void for_each_unit(int threads, std::int64_t count, const Work& work) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) work(i);
    return;
  }
  std::atomic<std::int64_t> next{0};
  auto take_units = [&](int) {
    for (std::int64_t i = next++; i < count; i = next++) work(i);
  };
  // In a separate arena, the calling thread cannot run other tasks of the program while it waits.
  tbb::task_arena arena(threads);
  arena.execute([&] { tbb::parallel_for(0, threads, take_units, tbb::simple_partitioner()); });
}

}  // namespace gdpa::cpu
