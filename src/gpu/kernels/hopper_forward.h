// The host file of kernels/hopper/forward.cuh: O on Hopper, with one persistent CTA on each multiprocessor.
#pragma once

#include <fmt/format.h>

#include <optional>

#include "codegen/inputs.h"
#include "common/bias_tile.cuh"
#include "definition/tensor_types.h"
#include "gpu/kernels/hopper.h"

namespace gdpa::gpu {

struct HopperForward : AttentionKernel, FunctionForm {
  int query_stages = 0;                    ///< of Q; AttentionKernel::stages is the number for K and V
  bool query_in_registers = false;         ///< Q is an RS operand; otherwise it stays in shared memory
  int box_keys = 0;                        ///< with pages: the keys of one TMA load; otherwise 0
  BiasTile bias_tile = BiasTile::none;     ///< of a dense bias in shared memory
  bool stages_lookups = false;             ///< the elements of lookups are staged in shared memory
  hopper::Pass pass = hopper::Pass::only;  ///< which values of f the kernel is for

  using Arguments = hopper::ForwardArguments;
  static constexpr KernelNames names = {"hopper", "forward", "forward", "ForwardArguments"};
  auto operator<=>(const HopperForward&) const = default;

  std::string properties() const {
    const std::string paged = box_keys > 0 ? fmt::format(" paged in boxes of {}", box_keys) : "";
    return describe(*this, fmt::format("{}{}{}{}", exact_or_fast(accuracy), in_description(pass), paged, delayed()),
                    warps);
  }

  /// Whether the elements of e, of a function g(s + e), leave enough registers for a product with Q: they are lookups
  /// or elements of 16 bits in shared memory.
  bool has_registers_for_factor(const activation::Function& function) const {
    if (function.of_sum() == nullptr || stages_lookups) return true;
    if (bias_tile == BiasTile::none) return false;
    const std::optional<std::size_t> read = activation::tile_read(function, tensor_types);
    return number_type(tensor_types, function.inputs()[read.value()].tensor) != NumberType::float32;
  }

  /// Whether the kernel can multiply Q in place of each score: in registers, and in bfloat16, because fp16 would lose
  /// small elements of Q altogether. Q as an addend stays as it is.
  bool may_multiply_query(const activation::Function& function) const {
    return query_in_registers && element == GpuElement::bfloat16 && accuracy == Accuracy::fast &&
           epilogue != Epilogue::addend && has_registers_for_factor(function);
  }

  SourceParts source(const Expressions& expressions) const {
    constexpr std::string_view names_of_bias_tiles[] = {"none", "aligned", "unaligned"};
    ConfigText config;
    write_attention(*this, expressions, config);
    config.type("Activation", "::Activation");
    write_inputs(expressions.function, config);
    if (box_keys > 0) {
      const std::string layout = fmt::format("PagedLayout<{}>", box_keys);
      write_layout("gdpa::pipeline::", {layout, "pipeline/paged_layout.cuh"}, has_output_offsets, config);
    } else {
      write_layout("gdpa::pipeline::", mapped_packed_layout, has_output_offsets, config);
    }
    write_pass(pass, config);
    config.number("query_stages", query_stages);
    config.flag("query_in_registers", query_in_registers);
    config.constant("auto", "bias_tile",
                    fmt::format("gdpa::BiasTile::{}", names_of_bias_tiles[static_cast<int>(bias_tile)]));
    config.flag("stages_lookups", stages_lookups);
    const activation::ForwardForm form{.may_multiply_query = may_multiply_query(expressions.function)};
    return hopper_source(function_source(*this, *this, expressions, form), config);
  }
};

/// What the launches of forward need from the plan. Offsets are in the workspace; -1: none.
struct HopperForwardLaunch {
  int64_t ctas = 0;
  pipeline::TileDistribution tiles;
  int64_t tiles_taken = -1;  ///< with a dynamic order: of ForwardArguments::tiles_taken
  int64_t found_nan = -1;    ///< with two passes: of ForwardArguments::found_nan
};

inline Launch launch(const HopperForward& kernel, const HopperForwardLaunch& of) {
  const int box_keys = kernel.box_keys > 0 ? kernel.box_keys : kernel.tile_keys;
  // Each pass has a counter of its own.
  const int64_t counter = kernel.pass == hopper::Pass::second ? 1 : 0;
  return Launch::of(kernel, of.ctas, [of, box_keys, counter](const BoundCall& call) {
    hopper::ForwardArguments arguments{query_major_arguments(call, box_keys, of.tiles, &Params::output), nullptr};
    if (of.found_nan >= 0) arguments.found_nan = call.at<int>(of.found_nan);
    if (of.tiles_taken >= 0) arguments.tiles_taken = call.at<unsigned>(of.tiles_taken) + counter;
    return arguments;
  });
}

}  // namespace gdpa::gpu
