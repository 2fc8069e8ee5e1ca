// What the host files of the Hopper kernels share.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "definition/environment.h"
#include "gpu/kernels/attention.h"
#include "gpu/launch.h"
#include "gpu/tensor_maps.h"
#include "hopper/arguments.cuh"

namespace gdpa::gpu {

/// Whether the kernels have a random delay at every wait, arrival and copy (kernels/common/random_delay.cuh): with
/// GDPA_RANDOM_DELAYS=1, which the stress test sets.
inline bool has_random_delays() {
  static const bool is_asked = is_set("GDPA_RANDOM_DELAYS");
  return is_asked;
}

/// The parts of a source with the wait for the previous kernel of the call, with which every Hopper kernel begins.
inline SourceParts hopper_source(std::string functions, const ConfigText& config) {
  return {.macros = has_random_delays() ? "#define GDPA_RANDOM_DELAYS\n\n" : "",
          .functions = "#include \"pipeline/dependent_launch.cuh\"\n" + std::move(functions),
          .config = config.text(),
          .begin = "  gdpa::pipeline::wait_for_previous_kernel();\n"};
}

/// Writes Config::pass.
inline void write_pass(hopper::Pass pass, ConfigText& config) {
  constexpr std::string_view names[] = {"only", "first", "second"};
  config.constant("auto", "pass", fmt::format("gdpa::hopper::Pass::{}", names[static_cast<int>(pass)]));
}

/// Words of the description of a kernel of the second pass, and of a kernel with random delays.
inline std::string_view in_description(hopper::Pass pass) { return pass == hopper::Pass::second ? " second pass" : ""; }
inline std::string_view delayed() { return has_random_delays() ? " delayed" : ""; }

/// Shared memory of a CTA that the Hopper kernels need.
constexpr int hopper_shared_kilobytes = 227;

inline int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

/// A layout with map coordinates.
constexpr LayoutName mapped_packed_layout = {"PackedLayout", "pipeline/packed_layout.cuh"};

/// The arguments of the kernels whose CTAs own query tiles: hopper_forward and hopper_parameter_gradients. `output` has
/// the rows of O. K and V are loaded in boxes of `key_rows` rows.
inline pipeline::QueryMajorArguments query_major_arguments(const BoundCall& call, int key_rows,
                                                           const pipeline::TileDistribution& tiles,
                                                           Operand Params::*output) {
  pipeline::QueryMajorArguments arguments{};
  arguments.common = call.common;
  arguments.scale = static_cast<float>(call.params.scale);
  arguments.tiles = tiles;
  arguments.query = map_operand(call, &Params::query, hopper::warpgroup_rows);
  arguments.key = map_operand(call, &Params::key, key_rows);
  arguments.value = map_operand(call, &Params::value, key_rows);
  arguments.output = map_operand(call, output, hopper::warpgroup_rows);
  return arguments;
}

}  // namespace gdpa::gpu
