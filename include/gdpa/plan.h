// Plan: what will run for a problem - kernel, tiles, schedule, workspace - and why. Printable; see `gdpa explain`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gdpa/export.h"

namespace gdpa {

enum class Direction { forward, backward };

/// One kernel of a call on a GPU, compiled for its architecture.
struct GpuKernel {
  std::string name;          ///< which one, for which types, with which tile
  std::string architecture;  ///< "sm_90a"
  int64_t ctas = 0;          ///< of its grid
  int threads = 0;           ///< of a CTA
  int registers = 0;         ///< of a thread
  int local_bytes = 0;       ///< of a thread, in memory: what spills from the registers
  int64_t shared_bytes = 0;  ///< of a CTA
};

struct Plan {
  Direction direction = Direction::forward;
  std::string kernel;           ///< e.g. "cpu.forward"
  std::string schedule;         ///< how the work is cut and dealt out, by name
  std::string reason;           ///< why this kernel and schedule, in one sentence
  int64_t tile_queries = 0;     ///< rows of a score tile
  int64_t tile_keys = 0;        ///< columns of a score tile
  int threads = 1;              ///< that share the work: of the CPU, or of a CTA
  int64_t units = 0;            ///< pieces of work that are dealt out; on a GPU, CTAs
  int64_t workspace_bytes = 0;  ///< memory beyond inputs and outputs, all threads together
  bool deterministic = true;    ///< equal bits from run to run
  std::vector<GpuKernel>
      kernels;       ///< GPU: all that run, in order; `kernel` and the tile are those of the first product
  double flops = 0;  ///< products over the scores that the mask keeps
  double bytes = 0;  ///< each input read once and each output written once
};

/// A few lines for people.
GDPA_API std::string to_string(const Plan& plan);

}  // namespace gdpa
