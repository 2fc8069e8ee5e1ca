// See hopper_forward.h.
#include "gpu/kernels/hopper_forward.h"

#include <fmt/format.h>

#include <optional>

#include "codegen/inputs.h"
#include "gpu/kernels/hopper_query_major.h"

namespace gdpa::gpu {
namespace {

std::string_view in_source(BiasTile tile) {
  switch (tile) {
    case BiasTile::none:
      return "none";
    case BiasTile::aligned:
      return "aligned";
    case BiasTile::unaligned:
      return "unaligned";
  }
  return {};
}

/// Whether the elements of e, of a function g(s + e), leave enough registers for a product with Q: they are lookups or
/// elements of 16 bits in shared memory.
bool has_registers_for_factor(const HopperForward& kernel, const activation::Function& function) {
  if (function.of_sum() == nullptr || kernel.stages_lookups) return true;
  if (kernel.bias_tile == BiasTile::none) return false;
  const std::optional<std::size_t> read = activation::tile_read(function, kernel.tensor_types);
  const auto tensor = function.inputs()[read.value()].tensor;
  return static_cast<NumberType>(kernel.tensor_types >> (4 * tensor) & 7U) != NumberType::float32;
}

/// Whether a kernel can multiply Q in place of each score: in registers, and in bfloat16, because fp16 would lose small
/// elements of Q altogether.
bool may_multiply_query(const HopperForward& kernel, const activation::Function& function) {
  return kernel.query_in_registers && kernel.element == GpuElement::bfloat16 && kernel.accuracy == Accuracy::fast &&
         has_registers_for_factor(kernel, function);
}

}  // namespace

std::string HopperForward::properties() const {
  const std::string paged = box_keys > 0 ? fmt::format(" paged in boxes of {}", box_keys) : "";
  return describe(*this, fmt::format("{}{}{}{}", exact_or_fast(accuracy), in_description(pass), paged, delayed()),
                  warps);
}

SourceParts HopperForward::source(const Expressions& expressions) const {
  const activation::Function& function = expressions.function;
  ConfigText config;
  write_attention(*this, expressions, config);
  config.type("Activation", "::Activation");
  write_inputs(&function, config);
  write_query_major_layout(*this, box_keys, config);
  config.constant("auto", "pass", fmt::format("gdpa::hopper::Pass::{}", gpu::in_source(pass)));
  config.number("query_stages", query_stages);
  config.flag("query_in_registers", query_in_registers);
  config.constant("auto", "bias_tile", fmt::format("gdpa::BiasTile::{}", in_source(bias_tile)));
  config.flag("stages_lookups", stages_lookups);
  const activation::ForwardForm form{.may_multiply_query = may_multiply_query(*this, function)};
  return hopper_source(function_source(*this, *this, expressions, form), config);
}

Launch launch(const HopperForward& kernel, const HopperForwardLaunch& of) {
  const int box_keys = kernel.box_keys > 0 ? kernel.box_keys : kernel.tile_keys;
  // Each pass has a counter of its own.
  const int64_t counter = kernel.pass == hopper::Pass::second ? 1 : 0;
  return Launch::of(kernel, of.ctas, [of, box_keys, counter](const BoundCall& call) {
    hopper::ForwardArguments arguments{query_major_arguments(call, box_keys, of.tiles, Tensor::output), nullptr};
    if (of.found_nan >= 0) arguments.found_nan = call.at<int>(of.found_nan);
    if (of.tiles_taken >= 0) arguments.tiles_taken = call.at<unsigned>(of.tiles_taken) + counter;
    return arguments;
  });
}

}  // namespace gdpa::gpu
