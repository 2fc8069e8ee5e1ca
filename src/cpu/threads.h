// Threads: dealing out numbered pieces of work to them, each drawn by the next thread that is free.
#pragma once

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <atomic>
#include <cstdint>

namespace gdpa::cpu {

/// Calls work(0) ... work(count - 1), each once, on at most `threads` threads, the caller among them; returns when all
/// are done. With one thread nobody is woken. An exception of `work` is thrown again after the others have stopped.
template <class Work>
void for_each_unit(int threads, std::int64_t count, const Work& work) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) work(i);
    return;
  }
  std::atomic<std::int64_t> next{0};
  auto draw = [&](int) {
    for (std::int64_t i = next++; i < count; i = next++) work(i);
  };
  // An arena of its own keeps the caller, while it waits, from picking up other work of the program on this thread.
  tbb::task_arena arena(threads);
  arena.execute([&] { tbb::parallel_for(0, threads, draw, tbb::simple_partitioner()); });
}

}  // namespace gdpa::cpu
