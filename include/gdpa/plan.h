// Plan: what will run for a problem - kernel, tiles, schedule, workspace - and why. Printable; see `gdpa explain`.
#pragma once

#include <cstdint>
#include <string>

#include "gdpa/export.h"

namespace gdpa {

enum class Direction { forward, backward };

struct Plan {
  Direction direction = Direction::forward;
  std::string kernel;           ///< e.g. "cpu.forward"
  std::string schedule;         ///< how the work is cut and dealt out, by name
  std::string reason;           ///< why this kernel and schedule, in one sentence
  int64_t tile_queries = 0;     ///< rows of a score tile
  int64_t tile_keys = 0;        ///< columns of a score tile
  int threads = 1;              ///< CPU threads that share the work
  int64_t units = 0;            ///< pieces of work that are dealt out
  int64_t workspace_bytes = 0;  ///< memory beyond inputs and outputs, all threads together
  bool deterministic = true;    ///< equal bits from run to run
  int registers = 0;            ///< GPU: of a thread of the first kernel
  int64_t shared_bytes = 0;     ///< GPU: shared memory of a CTA of the first kernel
  double flops = 0;             ///< products over the scores that the mask keeps
  double bytes = 0;             ///< each input read once and each output written once
};

/// A few lines for people.
GDPA_API std::string to_string(const Plan& plan);

}  // namespace gdpa
