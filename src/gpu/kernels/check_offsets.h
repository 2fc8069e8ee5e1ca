// The host file of kernels/portable/check_offsets.cuh, which stops a call with wrong offsets in debug mode.
#pragma once

#include <vector>

#include "definition/environment.h"
#include "gpu/call.h"
#include "gpu/launch.h"
#include "plan/prepared_tiles.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct CheckOffsets : NoConfig {
  using Arguments = portable::CheckOffsetsArguments;
  static constexpr KernelNames names = {"portable", "check_offsets", "check_offsets", "CheckOffsetsArguments"};
};

/// Whether a call has such a launch: in debug mode, if its device data have offsets.
inline bool checks_offsets(const Call& call) {
  const Problem& problem = call.problem;
  return gdpa::checks_offsets() &&
         (call.params.queries.is_jagged() || call.params.keys.is_jagged() || problem.has_batch_map ||
          problem.has_pages() || problem.has_output_offsets || problem.prepared != nullptr);
}

/// The launch that checks the offsets of the call, and the lengths of a prepared mask, whose lists are `lists`.
inline Launch check_offsets(const std::vector<plan::TileListsPlan>& lists) {
  constexpr int64_t sides = 2;
  const int64_t prepared_entries = lists.empty() ? 0 : lists.front().entries;
  return Launch::of(CheckOffsets(), sides, [prepared_entries](const BoundCall& call) {
    const auto& [problem, params, common, workspace] = call;
    portable::CheckOffsetsArguments arguments{
        params.queries, params.keys,    problem.has_query_gaps, problem.has_key_gaps, params.batch,
        problem.rows_q, problem.rows_k, params.outputs.begins,  problem.rows_o,       nullptr};
    if (problem.prepared != nullptr) {
      const auto* const memory = static_cast<const std::byte*>(problem.prepared->data);
      arguments.prepared = reinterpret_cast<const ListedEntry*>(memory + prepared_entries);
    }
    return arguments;
  });
}

}  // namespace gdpa::gpu
