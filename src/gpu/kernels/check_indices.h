// The host file of kernels/portable/check_indices.cuh, which stops a call with an index outside of its axis in debug
// mode.
#pragma once

#include <optional>

#include "codegen/inputs.h"
#include "definition/environment.h"
#include "gpu/kernels/attention.h"
#include "gpu/launch.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct CheckIndices : MaskForm {
  unsigned tensor_types = 0;
  bool has_pages = false;

  using Arguments = portable::CheckIndicesArguments;
  static constexpr KernelNames names = {"portable", "check_indices", "check_indices", "CheckIndicesArguments", ""};
  static constexpr bool reads_function = true, reads_mask = true;
  auto operator<=>(const CheckIndices&) const = default;

  SourceParts source(const Expressions& expressions) const {
    std::string text = condition_of(*this, expressions) + "#include \"common/index.cuh\"\n\n" +
                       activation::index_check_source("FunctionIndices", expressions.function, tensor_types,
                                                      activation::Expression::function);
    if (expressions.mask != nullptr) {
      text +=
          activation::index_check_source("MaskIndices", *expressions.mask, mask_types, activation::Expression::mask);
    }
    ConfigText config;
    write_mask(*this, expressions, config);
    config.type("FunctionIndices", "::FunctionIndices");
    config.type("MaskIndices", expressions.mask != nullptr ? "::MaskIndices" : "gdpa::portable::NoIndices");
    write_layout("gdpa::", has_pages ? paged_layout : packed_layout, false, config);
    return {.functions = std::move(text), .config = config.text()};
  }
};

/// The launch that checks the indices of f and of the mask; none if they read nothing, or without the debug mode.
inline std::optional<Launch> check_indices(const Call& call) {
  const activation::Function* const mask = call.expressions.mask;
  const bool has_reads = call.facts().reads > 0 || (mask != nullptr && mask->facts().reads > 0);
  if (!has_reads || !checks_indices()) return std::nullopt;
  const CheckIndices kernel{mask_form_for(call.problem, 0), call.problem.tensor_types, call.problem.has_pages()};
  return Launch::of(kernel, 1, [](const BoundCall& bound) { return bound.common; });
}

}  // namespace gdpa::gpu
