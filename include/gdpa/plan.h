// Plan: the kernels, tiles, schedule and workspace that gdpa selects for a call, with the reason. `gdpa explain` prints
// it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gdpa/export.h"

namespace gdpa {

enum class Direction { forward, backward };

/// A compiled kernel of a call on a GPU, or a launch that clears memory: "clear memory", whose numbers are 0.
struct GpuKernel {
  std::string name;          ///< the family, kind, types and tile of the kernel
  std::string architecture;  ///< "sm_90a"
  int64_t ctas = 0;          ///< number of CTAs in the grid
  int threads = 0;           ///< threads of a CTA
  int registers = 0;         ///< registers of a thread
  int local_bytes = 0;       ///< local memory of a thread in bytes: registers that spilled
  int64_t shared_bytes = 0;  ///< shared memory of a CTA in bytes
};

/// The plan of a call in one direction, which gdpa::explain returns.
struct Plan {
  Direction direction = Direction::forward;
  std::string kernel;           ///< e.g. "cpu.forward"
  std::string schedule;         ///< name of the division of the work into units
  std::string reason;           ///< why gdpa selects this kernel and schedule, in one sentence
  int64_t tile_queries = 0;     ///< rows of a score tile
  int64_t tile_keys = 0;        ///< columns of a score tile
  int threads = 1;              ///< CPU: threads of the call; GPU: threads of a CTA
  int64_t units = 0;            ///< CPU: units of work that threads take one by one; GPU: CTAs
  int64_t workspace_bytes = 0;  ///< memory in addition to inputs and outputs, of all threads together
  bool deterministic = true;    ///< whether each run gives the same bits
  /// GPU: all launches of the call in order. `kernel` and the tile above belong to the first product.
  std::vector<GpuKernel> kernels;
  double flops = 0;  ///< multiplications and additions of the products, over the scores inside the mask
  double bytes = 0;  ///< bytes of all inputs and outputs, each counted once
};

/// Formats a plan as a few lines of text, as `gdpa explain` prints it.
///
///     std::puts(gdpa::to_string(gdpa::explain(attention, gdpa::Direction::forward)).c_str());
GDPA_API std::string to_string(const Plan& plan);

}  // namespace gdpa
