// See hopper_query_major.h.
#include "gpu/kernels/hopper_query_major.h"

#include <fmt/format.h>

namespace gdpa::gpu {

pipeline::QueryMajorArguments query_major_arguments(const BoundCall& call, int box_keys,
                                                    const pipeline::TileDistribution& tiles, Tensor output) {
  const Params& params = call.common.params;
  const auto map = [&](Tensor tensor, int box_rows) { return map_operand(call.problem, params, tensor, box_rows); };
  pipeline::QueryMajorArguments arguments{};
  arguments.common = call.common;
  arguments.scale = static_cast<float>(params.scale);
  arguments.tiles = tiles;
  arguments.query = map(Tensor::query, hopper::warpgroup_rows);
  arguments.key = map(Tensor::key, box_keys);
  arguments.value = map(Tensor::value, box_keys);
  arguments.output = map(output, hopper::warpgroup_rows);
  return arguments;
}

void write_query_major_layout(const AttentionKernel& kernel, int box_keys, ConfigText& config) {
  const std::string layout = box_keys > 0 ? fmt::format("PagedLayout<{}>", box_keys) : "PackedLayout";
  const std::string_view header = box_keys > 0 ? "pipeline/paged_layout.cuh" : "pipeline/packed_layout.cuh";
  write_layout("gdpa::pipeline::", {layout, header}, kernel.has_output_offsets, config);
}

}  // namespace gdpa::gpu
