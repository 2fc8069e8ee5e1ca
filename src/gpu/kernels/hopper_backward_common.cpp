// See hopper_backward_common.h.
#include "gpu/kernels/hopper_backward_common.h"

#include <fmt/format.h>

#include <cstddef>

#include "gpu/tensor_maps.h"
#include "gpu/workspace.h"

namespace gdpa::gpu {

hopper::BackwardArguments backward_arguments(const BoundCall& call, const AttentionKernel& tiles,
                                             const HopperBackwardPlan& plan) {
  const Params& params = call.common.params;
  const auto map = [&](Tensor tensor, int box_rows, int box_columns = pipeline::box_columns) {
    return map_operand(call.problem, params, tensor, box_rows, box_columns);
  };
  hopper::BackwardArguments arguments{};
  arguments.common = call.common;
  arguments.scale = static_cast<float>(params.scale);
  arguments.query = map(Tensor::query, tiles.tile_queries);
  arguments.key = map(Tensor::key, tiles.tile_keys);
  arguments.value = map(Tensor::value, tiles.tile_keys);
  arguments.grad_output = map(Tensor::grad_output, tiles.tile_queries);
  arguments.grad_query =
      map(Tensor::grad_query, hopper::warpgroup_rows, hopper::grad_query_columns(tiles.tile_queries, tiles.head_dim));
  arguments.grad_key = map(Tensor::grad_key, hopper::warpgroup_rows);
  arguments.grad_value = map(Tensor::grad_value, hopper::warpgroup_rows);
  arguments.whole_keys = plan.whole_keys;
  arguments.direct_keys = plan.direct_keys;
  arguments.queries_shared = has_shared_queries(call.problem);
  arguments.heads_per_group = static_cast<int>(plan.heads_per_group);
  arguments.slots = static_cast<unsigned>(plan.slots);
  arguments.slots_taken = call.at<unsigned>(plan.slot_counter);
  arguments.non_finite = arguments.slots_taken + 1;
  arguments.offsets_fall = call.at<int>(plan.slot_counter) + 2;
  arguments.key_tiles = call.at<std::byte>(plan.key_tiles);
  if (plan.segments >= 0) arguments.segments = call.at<std::byte>(plan.segments);
  arguments.most_key_tiles = static_cast<int>(plan.most_key_tiles);
  arguments.masks_of_heads = call.problem.mask_depends_on_head;
  if (plan.dq_semaphores >= 0) arguments.dq_semaphores = call.at<int>(plan.dq_semaphores);
  arguments.semaphores_per_head = static_cast<int>(plan.semaphores_per_head);
  arguments.prepares_grad_query = plan.prepares_grad_query;
  if (plan.grad_query >= 0) arguments.grad_query_accumulators = call.at<float>(plan.grad_query);
  return arguments;
}

void write_backward(const HopperBackwardKernel& kernel, hopper::Pass pass, const Expressions& expressions,
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
  config.constant("auto", "pass", fmt::format("gdpa::hopper::Pass::{}", in_source(pass)));
}

std::string describe_backward(const HopperBackwardKernel& kernel, std::string_view properties) {
  return describe(kernel,
                  fmt::format("{}{}{}{}{}{}", properties, kernel.has_batch_map ? " mapped" : "",
                              kernel.wants_grad_query ? "" : " without dQ", kernel.wants_grad_key ? "" : " without dK",
                              kernel.wants_grad_value ? "" : " without dV", delayed()),
                  kernel.warps);
}

}  // namespace gdpa::gpu
