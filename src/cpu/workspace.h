// Workspace: the memory of a thread. It grows to the size of the largest call, and the thread keeps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace gdpa::cpu {

struct FreeAligned {
  void operator()(void* memory) const;
};

/// Memory on a cache line's boundary.
using AlignedMemory = std::unique_ptr<void, FreeAligned>;

/// Throws Error (runtime) where the system has no more.
AlignedMemory allocate_aligned(std::int64_t bytes);

/// Returns at least this many bytes of the calling thread. They are valid until the next call on this thread.
void* thread_workspace(std::int64_t bytes);

/// Bytes that all threads hold as workspaces at this moment.
std::int64_t workspace_bytes_held();

}  // namespace gdpa::cpu
