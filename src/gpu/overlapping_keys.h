// Backward of keys whose sequences may overlap: two sequences of keys with a begin and an end may have a row in common.
#pragma once

#include <vector>

#include "gpu/kernels/portable_backward.h"
#include "gpu/kernels/portable_backward_query.h"
#include "gpu/plan.h"
#include "gpu/workspace.h"

namespace gdpa::gpu {

/// If sequences of keys may overlap, makes the attention kernels of the plan that own keys run only if no two sequences
/// have a row in common. Returns the launches for the other case: portable kernels that own rows of the keys. They are
/// the last launches of the call. The device knows which case it is: find_overlap says so. There are none if sequences
/// cannot overlap. Without this, all such calls would have the portable kernels, which take more than twice the time on
/// Hopper.
inline std::vector<Launch> separate_overlapping_keys(const Call& call, GpuPlan& plan) {
  const Problem& problem = call.problem;
  if (problem.direction != Direction::backward || !problem.has_key_gaps) return {};
  bool has_key_owners = false, has_query_kernel = false;
  for (Launch& launch : plan.launches) {
    if (launch.clears()) continue;
    const bool is_query_major = launch.as<PortableBackwardQuery>() != nullptr;
    has_key_owners |= !is_query_major;
    has_query_kernel |= is_query_major;
    if (!is_query_major) launch.kernel().run_only_if_keys_overlap(false);
  }
  if (!has_key_owners) return {};
  std::vector<Launch> launches;
  const auto add = [&](auto kernel, bool owns_keys, int64_t ctas) {
    choose_mask(call, owns_keys, kernel, plan);
    launches.push_back(Launch::of(kernel, ctas, [](const BoundCall& bound) {
      CommonArguments arguments = bound.common;
      arguments.key_sequences = {};
      arguments.key_sequences.side.length = bound.problem.rows_k;
      arguments.key_sequences.count = 1;
      return arguments;
    }));
    launches.back().kernel().run_only_if_keys_overlap(true);
  };
  if (problem.wanted.key || problem.wanted.value) {
    const PortableBackward kernel = portable_backward_for(call, false, true);
    const Side rows{Form::dense, problem.rows_k, 1};
    add(kernel, true, problem.heads_k * rows.most_tiles(kernel.tile_keys, problem.batch));
  }
  if (problem.wanted.query && !has_query_kernel) {
    const PortableBackwardQuery kernel = portable_backward_query_for(call, false);
    add(kernel, false, problem.heads_q * queries_of(problem).most_tiles(kernel.tile_queries, problem.batch));
  }
  plan.reason += "; where sequences of keys overlap, portable kernels compute instead";
  return launches;
}

}  // namespace gdpa::gpu
