// What the specifications of attention kernels share: the kernels that go over tiles of queries and keys.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <string>
#include <string_view>

#include "codegen/function.h"
#include "codegen/inputs.h"
#include "gpu/call.h"
#include "gpu/config_text.h"
#include "gpu/kernel.h"
#include "gpu/kernels/element.h"
#include "gpu/kernels/mask.h"
#include "gpu/tile_lists.h"

namespace gdpa::gpu {

/// Config::Epilogue (kernels/common/epilogues.cuh), and its words in a source and in a description.
enum class Epilogue : std::uint8_t { scale, row_scale, addend };
struct EpilogueName {
  std::string_view in_source, in_description;
};
inline const EpilogueName& name_of(Epilogue epilogue) {
  static constexpr EpilogueName names[] = {{"gdpa::ScaleEpilogue", ""},
                                           {"gdpa::RowScaleEpilogue", " scaled rows"},
                                           {"gdpa::AddendEpilogue", " with addend"}};
  return names[static_cast<std::size_t>(epilogue)];
}

struct AttentionKernel : MaskForm {
  GpuElement element = GpuElement::bfloat16;
  int head_dim = 0;
  int head_dim_v = 0;
  int tile_queries = 0;
  int tile_keys = 0;
  int warps = 0;  ///< warps that compute, along the rows of the tile that the CTA owns
  int stages = 0;
  bool aligned = false;
  bool has_output_offsets = false;  ///< O and dO have rows of their own
  Epilogue epilogue = Epilogue::scale;

  static constexpr bool reads_function = true, reads_mask = true;
  auto operator<=>(const AttentionKernel&) const = default;
};

/// The members of kernels that evaluate f.
struct FunctionForm {
  unsigned tensor_types = 0;           ///< of the tensors that f reads, as in Problem
  Accuracy accuracy = Accuracy::fast;  ///< of f
  bool scales_scores = true;           ///< otherwise f is homogeneous, and its argument is Q K^T

  auto operator<=>(const FunctionForm&) const = default;
};

/// The members that depend on the operands of the call alone.
inline AttentionKernel attention_kernel_for(const Call& call) {
  const Problem& problem = call.problem;
  AttentionKernel kernel;
  kernel.element = element_of(problem.dtype, problem.allow_tf32);
  kernel.head_dim = static_cast<int>(problem.head_dim);
  kernel.head_dim_v = static_cast<int>(problem.head_dim_v);
  kernel.aligned = call.aligned;
  kernel.has_output_offsets = problem.has_output_offsets;
  if (problem.out_scale == OutScale::Kind::per_row) kernel.epilogue = Epilogue::row_scale;
  return kernel;
}
inline FunctionForm function_form_for(const Call& call) {
  return {call.problem.tensor_types, accuracy_of(call.problem)};
}

/// Sets the members of a kernel with a mask. The tile sizes are set. `reads_query_lists`: the kernel owns keys, and
/// reads the lists of their query tiles.
inline void choose_mask(const Call& call, bool reads_query_lists, AttentionKernel& kernel, GpuPlan& plan) {
  static_cast<MaskForm&>(kernel) = mask_form_for(
      call.problem, lists_of_tiles(call.problem, kernel.tile_queries, kernel.tile_keys, reads_query_lists, plan));
}

/// Writes the members of Config that all of these kernels have: Element, Mask, Epilogue, and the sizes.
inline void write_attention(const AttentionKernel& kernel, const Expressions& expressions, ConfigText& config) {
  config.type("Element", fmt::format("gdpa::{}", in_source(kernel.element)));
  config.flag("aligned", kernel.aligned);
  write_mask(kernel, expressions, config);
  config.type_of_header("Epilogue", name_of(kernel.epilogue).in_source, "common/epilogues.cuh");
  config.number("head_dim", kernel.head_dim);
  config.number("head_dim_v", kernel.head_dim_v);
  config.number("tile_queries", kernel.tile_queries);
  config.number("tile_keys", kernel.tile_keys);
  config.number("stages", kernel.stages);
}

/// Writes Config::Inputs, the inputs of a score: the printed struct, or none.
inline void write_inputs(const activation::Function& function, ConfigText& config) {
  if (activation::has_inputs_at(function)) {
    config.type("Inputs", "::Inputs");
  } else {
    config.type_of_header("Inputs", "gdpa::NoInputs", "common/no_inputs.cuh");
  }
}

/// A struct for Config::Layout, and its header.
struct LayoutName {
  std::string_view name, header;
};
constexpr LayoutName packed_layout = {"PackedLayout", "common/packed_layout.cuh"},
                     paged_layout = {"PagedLayout", "common/paged_layout.cuh"};

/// Writes Config::Layout, with a name in the namespace `scope` ("gdpa::").
inline void write_layout(std::string_view scope, const LayoutName& layout, bool has_output_offsets,
                         ConfigText& config) {
  const std::string name = fmt::format("{}{}", scope, layout.name);
  config.type_of_header("Layout", has_output_offsets ? fmt::format("{}WithOutputOffsets<{}>", scope, name) : name,
                        layout.header);
}

/// The condition of the mask and the structs of f. `activation` has what is special about the kernel.
inline std::string function_source(const AttentionKernel& kernel, const FunctionForm& form,
                                   const Expressions& expressions, activation::ForwardForm activation = {}) {
  activation.scales_scores = form.scales_scores;
  activation.has_fp16_p = kernel.element == GpuElement::float16;
  return condition_of(kernel, expressions) +
         activation::cuda_source(expressions.function, form.accuracy, activation, form.tensor_types);
}

/// "BFloat16 d=128 paged d_v=128 tile 128x64, 8 warps, 2 stages". `properties` is " paged".
inline std::string describe(const AttentionKernel& kernel, std::string_view properties, int warps) {
  return fmt::format("{} d={}{}{} d_v={} tile {}x{}, {} warps, {} stages", in_source(kernel.element), kernel.head_dim,
                     properties, name_of(kernel.epilogue).in_description, kernel.head_dim_v, kernel.tile_queries,
                     kernel.tile_keys, warps, kernel.stages);
}

/// A word of such a description, for a function of this accuracy.
inline std::string_view exact_or_fast(Accuracy accuracy) { return accuracy == Accuracy::exact ? " exact" : ""; }

}  // namespace gdpa::gpu
