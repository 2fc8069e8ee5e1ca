// Workspace: the memory of a thread. The memory grows to the size of the largest call. The thread frees the
// memory when it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace gdpa::cpu {

struct FreeAligned {
  void operator()(void* memory) const;
};

/// Memory that begins at a cache line.
using AlignedMemory = std::unique_ptr<void, FreeAligned>;

/// Throws Error (runtime) if the system has too little memory.
AlignedMemory allocate_aligned(std::int64_t bytes);

/// Returns at least this many bytes of the calling thread. They are valid until the next call on this thread.
void* thread_workspace(std::int64_t bytes);

/// Returns the bytes of the workspaces of all threads.
std::int64_t workspace_bytes_held();

}  // namespace gdpa::cpu
