// What the four kernels of backward on Hopper share: key_schedule writes the table of key tiles, backward or
// wide_backward computes, and round_grad_query rounds dQ where no other kernel does.
#pragma once

#include <fmt/format.h>

#include "gpu/kernels/hopper.h"

namespace gdpa::gpu {

struct HopperBackwardKernel : AttentionKernel {
  bool keys_shared = false;        ///< the batch shares the keys
  bool has_batch_map = false;      ///< several batch entries may have the keys of one owner
  bool wants_grad_query = true;    ///< whether dQ is computed
  bool wants_grad_key = true;      ///< the same for dK
  bool wants_grad_value = true;    ///< the same for dV
  bool has_dq_semaphores = false;  ///< semaphores order the additions to dQ. Otherwise key_schedule clears
                                   ///< accumulators, and round_grad_query rounds them
  bool ordered = false;            ///< CTAs add to dQ in one order
  bool scales_entries = false;     ///< the entries of a key tile may differ in out_scale

  using Arguments = hopper::BackwardArguments;
  auto operator<=>(const HopperBackwardKernel&) const = default;
};

/// What the launches of these kernels need from the plan. Offsets are in the workspace, in bytes; -1 means none.
struct HopperBackwardPlan : hopper::BackwardNumbers {
  int64_t slot_counter = -1;   ///< of the counter of slots that CTAs have taken
  int64_t key_tiles = -1;      ///< of the table that key_schedule writes
  int64_t segments = -1;       ///< with a batch map: of the table of query segments
  int64_t dq_semaphores = -1;  ///< of the dQ semaphores
  int64_t grad_query = -1;     ///< of the fp32 accumulators of dQ
};

/// The arguments of all four kernels, which have the same tiles.
inline hopper::BackwardArguments backward_arguments(const BoundCall& call, const AttentionKernel& tiles,
                                                    const HopperBackwardPlan& plan) {
  hopper::BackwardArguments arguments{};
  static_cast<hopper::BackwardNumbers&>(arguments) = plan;
  arguments.common = call.common;
  const int grad_query_columns = hopper::grad_query_columns(tiles.tile_queries, tiles.head_dim);
  arguments.scale = static_cast<float>(call.params.scale);
  arguments.query = map_operand(call, &Params::query, tiles.tile_queries);
  arguments.key = map_operand(call, &Params::key, tiles.tile_keys);
  arguments.value = map_operand(call, &Params::value, tiles.tile_keys);
  arguments.grad_output = map_operand(call, &Params::grad_output, tiles.tile_queries);
  arguments.grad_query = map_operand(call, &Params::grad_query, hopper::warpgroup_rows, grad_query_columns);
  if (tiles.epilogue == Epilogue::addend) {
    arguments.addend = map_operand(call, &Params::grad_output, hopper::warpgroup_rows, grad_query_columns);
  }
  arguments.grad_key = map_operand(call, &Params::grad_key, hopper::warpgroup_rows);
  arguments.grad_value = map_operand(call, &Params::grad_value, hopper::warpgroup_rows);
  arguments.slots_taken = call.at<unsigned>(plan.slot_counter);
  arguments.non_finite = arguments.slots_taken + 1;
  arguments.offsets_fall = call.at<int>(plan.slot_counter) + 2;
  arguments.key_tiles = call.at<std::byte>(plan.key_tiles);
  if (plan.segments >= 0) arguments.segments = call.at<std::byte>(plan.segments);
  if (plan.dq_semaphores >= 0) arguments.dq_semaphores = call.at<int>(plan.dq_semaphores);
  if (plan.grad_query >= 0) arguments.grad_query_accumulators = call.at<float>(plan.grad_query);
  return arguments;
}

/// Launches one of the four kernels.
template <class Spec>
Launch launch(const Spec& kernel, int64_t ctas, const HopperBackwardPlan& plan) {
  return Launch::of(kernel, ctas, [tiles = AttentionKernel(kernel), plan](const BoundCall& call) {
    return backward_arguments(call, tiles, plan);
  });
}

/// Writes the members of Config that all four have.
inline void write_backward(const HopperBackwardKernel& kernel, hopper::Pass pass, const Expressions& expressions,
                           ConfigText& config) {
  write_attention(kernel, expressions, config);
  const LayoutName layout = {kernel.has_batch_map ? "MappedLayout" : "PackedLayout", "pipeline/packed_layout.cuh"};
  write_layout("gdpa::pipeline::", layout, kernel.has_output_offsets, config);
  config.flag("computes_grad_query", kernel.wants_grad_query);
  config.flag("computes_grad_key", kernel.wants_grad_key);
  config.flag("computes_grad_value", kernel.wants_grad_value);
  config.flag("keys_shared", kernel.keys_shared);
  config.flag("has_dq_semaphores", kernel.has_dq_semaphores);
  config.flag("ordered", kernel.ordered);
  config.flag("scales_entries", kernel.scales_entries);
  write_pass(pass, config);
}

/// A description of one of the four. `properties` are of the function and the pass.
inline std::string describe_backward(const HopperBackwardKernel& kernel, std::string_view properties) {
  return describe(kernel,
                  fmt::format("{}{}{}{}{}{}", properties, kernel.has_batch_map ? " mapped" : "",
                              kernel.wants_grad_query ? "" : " without dQ", kernel.wants_grad_key ? "" : " without dK",
                              kernel.wants_grad_value ? "" : " without dV", delayed()),
                  kernel.warps);
}

}  // namespace gdpa::gpu
