// See planning.h.
#include "families/planning.h"

#include <algorithm>

#include "gdpa/attention.h"

namespace gdpa::families {

int64_t Side::length() const { return form == Form::dense && batch > 0 ? rows / batch : rows; }

int64_t Side::mean_length() const { return form == Form::shared ? rows : rows / std::max<int64_t>(1, batch); }

int64_t Side::most_tiles(int64_t tile, int64_t splits) const {
  if (form == Form::jagged) return rows / tile + batch + 2;
  return (form == Form::shared ? splits : batch) * divide_up(length(), tile);
}

Side queries_of(const Problem& problem) { return {problem.query_form, problem.rows_q, problem.batch}; }
Side keys_of(const Problem& problem) { return {problem.key_form, problem.rows_k, problem.key_entries()}; }

bool has_shared_queries(const Problem& problem) {
  const bool is_only_side = problem.query_form == Form::shared && problem.key_form != Form::shared;
  return problem.shares_queries() || (problem.deterministic && is_only_side);
}
bool has_shared_keys(const Problem& problem) {
  const bool is_only_side = problem.key_form == Form::shared && problem.query_form != Form::shared;
  return problem.shares_keys() || (problem.deterministic && is_only_side);
}

plan::GpuElement element_of(DType dtype, plan::Float32Products products) {
  using plan::GpuElement;
  if (dtype == DType::bfloat16) return GpuElement::bfloat16;
  if (dtype == DType::float16) return GpuElement::float16;
  return products == plan::Float32Products::one ? GpuElement::tensor_float32 : GpuElement::float32;
}

void select_structs(plan::KernelSpec& kernel, const Problem& problem) { kernel.has_pages = problem.has_pages(); }

plan::KernelSpec kernel_for(const PlanRequest& request, plan::KernelKind kind) {
  plan::KernelSpec kernel;
  kernel.kind = kind;
  kernel.element = element_of(request.problem.dtype, request.products);
  kernel.head_dim = static_cast<int>(request.problem.head_dim);
  kernel.head_dim_v = static_cast<int>(request.problem.head_dim_v);
  kernel.aligned = request.aligned;
  select_structs(kernel, request.problem);
  kernel.has_output_offsets = request.problem.has_output_offsets;
  kernel.has_row_scale = request.problem.out_scale == OutScale::Kind::per_row;
  return kernel;
}

int64_t WorkspaceLayout::reserve(int64_t bytes) {
  const int64_t offset = workspace_.bytes;
  workspace_.bytes += divide_up(bytes, Workspace::alignment) * Workspace::alignment;
  return offset;
}

int64_t WorkspaceLayout::reserve_accumulators(int64_t rows, int64_t heads, int64_t columns) {
  return reserve(rows * heads * plan::padded_columns(columns) * static_cast<int64_t>(sizeof(float)));
}

void WorkspaceLayout::reserve_key_partials(const Problem& problem, int64_t splits) {
  if (problem.wanted.key)
    workspace_.grad_key = reserve_accumulators(splits * problem.rows_k, problem.heads_k, problem.head_dim);
  if (problem.wanted.value)
    workspace_.grad_value = reserve_accumulators(splits * problem.rows_k, problem.heads_k, problem.head_dim_v);
}

plan::GpuStep reduction(const Problem& problem, const plan::Gpu& gpu, bool aligned, int64_t columns, int64_t rows,
                        bool adds_query) {
  constexpr int64_t threads = 256, ctas_per_multiprocessor = 32;
  plan::KernelSpec kernel;
  kernel.kind = plan::KernelKind::reduce;
  kernel.element = element_of(problem.dtype, plan::Float32Products::three);
  kernel.head_dim = static_cast<int>(columns);
  kernel.aligned = aligned;
  kernel.adds_query = adds_query;
  const int64_t groups = rows * plan::padded_columns(columns) / plan::column_group;
  return {kernel, std::min(divide_up(groups, threads), ctas_per_multiprocessor * gpu.multiprocessors)};
}

}  // namespace gdpa::families
