// See attention.h.
#include "gpu/kernels/attention.h"

#include <fmt/format.h>

#include "codegen/inputs.h"
#include "gpu/tile_lists.h"

namespace gdpa::gpu {
namespace {

struct EpilogueName {
  std::string_view type, in_description;
};

const EpilogueName& name_of(Epilogue epilogue) {
  static constexpr EpilogueName names[] = {
      {"gdpa::ScaleEpilogue", ""},
      {"gdpa::RowScaleEpilogue", " scaled rows"},
      {"gdpa::AddendEpilogue", " with addend"},
  };
  return names[static_cast<std::size_t>(epilogue)];
}

}  // namespace

AttentionKernel attention_kernel_for(const Call& call) {
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

FunctionForm function_form_for(const Call& call) { return {call.problem.tensor_types, accuracy_of(call.problem)}; }

void choose_mask(const Call& call, bool reads_query_lists, AttentionKernel& kernel, GpuPlan& plan) {
  static_cast<MaskForm&>(kernel) = mask_form_for(
      call.problem, lists_of_tiles(call.problem, kernel.tile_queries, kernel.tile_keys, reads_query_lists, plan));
}

void write_attention(const AttentionKernel& kernel, const Expressions& expressions, ConfigText& config) {
  config.type("Element", fmt::format("gdpa::{}", in_source(kernel.element)));
  config.flag("aligned", kernel.aligned);
  write_mask(kernel, expressions, config);
  config.type_of_header("Epilogue", name_of(kernel.epilogue).type, "common/epilogues.cuh");
  config.number("head_dim", kernel.head_dim);
  config.number("head_dim_v", kernel.head_dim_v);
  config.number("tile_queries", kernel.tile_queries);
  config.number("tile_keys", kernel.tile_keys);
  config.number("stages", kernel.stages);
}

void write_inputs(const activation::Function* function, ConfigText& config) {
  if (function != nullptr && activation::has_inputs_at(*function)) {
    config.type("Inputs", "::Inputs");
  } else {
    config.type_of_header("Inputs", "gdpa::NoInputs", "common/no_inputs.cuh");
  }
}

void write_layout(std::string_view scope, const LayoutName& layout, bool has_output_offsets, ConfigText& config) {
  const std::string name = fmt::format("{}{}", scope, layout.name);
  config.type_of_header("Layout", has_output_offsets ? fmt::format("{}WithOutputOffsets<{}>", scope, name) : name,
                        layout.header);
}

std::string function_source(const AttentionKernel& kernel, const FunctionForm& form, const Expressions& expressions,
                            activation::ForwardForm activation) {
  activation.scales_scores = form.scales_scores;
  activation.has_fp16_p = kernel.element == GpuElement::float16;
  return condition_of(kernel, expressions) +
         activation::cuda_source(expressions.function, form.accuracy, activation, form.tensor_types);
}

std::string describe(const AttentionKernel& kernel, std::string_view properties, int warps) {
  return fmt::format("{} d={}{}{} d_v={} tile {}x{}, {} warps, {} stages", in_source(kernel.element), kernel.head_dim,
                     properties, name_of(kernel.epilogue).in_description, kernel.head_dim_v, kernel.tile_queries,
                     kernel.tile_keys, warps, kernel.stages);
}

}  // namespace gdpa::gpu
