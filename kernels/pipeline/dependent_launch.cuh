// Programmatic dependent launch: the CTAs of a kernel may start before the previous kernel of the call has ended. The
// time of the launch then overlaps with the previous kernel.
#pragma once

#include "pipeline/tensor_map.cuh"

namespace gdpa::pipeline {

/// Waits until the previous kernel of the stream has ended and its writes are visible. Every kernel of these
/// families begins with this call, by all threads. Without a dependent launch, it returns at once.
__device__ inline void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  fence_proxy_async_global();
}

/// Allows the CTAs of the next kernel of the call to start as soon as multiprocessors have room for them.
__device__ inline void allow_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace gdpa::pipeline
