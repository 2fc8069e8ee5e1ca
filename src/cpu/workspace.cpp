// Memory of the threads; see workspace.h.
#include "cpu/workspace.h"

#include <atomic>
#include <cstdlib>

#include "fmt/format.h"
#include "gdpa/error.h"

namespace gdpa::cpu {
namespace {

std::atomic<std::int64_t> held_bytes{0};

/// The memory of one thread, freed when the thread ends.
struct Holding {
  AlignedMemory memory;
  std::int64_t bytes = 0;

  void grow(std::int64_t wanted) {
    memory.reset();
    held_bytes -= bytes;
    bytes = 0;
    memory = allocate_aligned(wanted);
    bytes = wanted;
    held_bytes += bytes;
  }
  ~Holding() { held_bytes -= bytes; }
};

}  // namespace

void FreeAligned::operator()(void* memory) const { std::free(memory); }

AlignedMemory allocate_aligned(std::int64_t bytes) {
  constexpr std::int64_t line = 64;
  const std::int64_t rounded = (bytes + line - 1) / line * line;
  void* memory = std::aligned_alloc(line, static_cast<std::size_t>(rounded));
  if (memory == nullptr) {
    throw Error(ErrorKind::runtime,
                fmt::format("the CPU backend needs {} bytes of workspace and the system has no more; free some, or ask "
                            "for fewer threads",
                            rounded));
  }
  return AlignedMemory(memory);
}

void* thread_workspace(std::int64_t bytes) {
  thread_local Holding holding;
  if (holding.bytes < bytes) holding.grow(bytes);
  return holding.memory.get();
}

std::int64_t workspace_bytes_held() { return held_bytes; }

}  // namespace gdpa::cpu
