// See reduce.h.
#include "gpu/kernels/reduce.h"

#include <fmt/format.h>

#include <algorithm>

namespace gdpa::gpu {

std::string Reduce::description() const {
  return fmt::format("{}: {} {} d={}", names.family, names.name, in_source(element), columns);
}

SourceParts Reduce::source(const Expressions& /*expressions*/) const {
  ConfigText config;
  config.type("Element", fmt::format("gdpa::{}", in_source(element)));
  config.flag("aligned", aligned);
  config.number("columns", columns);
  config.flag("adds", false);
  return {.config = config.text()};
}

Launch reduce(const Call& call, const Accumulators& accumulators, Operand Params::*gradient, int64_t splits) {
  constexpr int64_t threads = 256, ctas_per_multiprocessor = 32;
  // fp32 gradients are stored as they are, whatever their products are.
  const GpuElement element = call.problem.dtype == DType::float32 ? GpuElement::float32 : element_of(call.problem);
  const Reduce kernel{element, static_cast<int>(accumulators.columns), call.aligned};
  const int64_t groups = accumulators.rows * accumulators.heads * padded_columns(accumulators.columns) / column_group;
  const int64_t ctas = std::min(divide_up(groups, threads), ctas_per_multiprocessor * call.gpu.multiprocessors);
  return Launch::of(kernel, ctas, [accumulators, gradient, splits](const BoundCall& bound) {
    const Operand from = accumulators.operand(bound.workspace);
    const int64_t rows = std::max<int64_t>(1, accumulators.rows);
    portable::ReduceArguments arguments{};
    arguments.partials = static_cast<const float*>(from.data);
    arguments.splits = accumulators.form == Form::shared ? splits : 1;
    arguments.split_stride = accumulators.rows * from.row_stride;
    arguments.rows = accumulators.rows;
    arguments.rows_in_batch = accumulators.form == Form::dense ? std::max<int64_t>(1, accumulators.length) : rows;
    arguments.heads = accumulators.heads;
    arguments.output = bound.params.*gradient;
    return arguments;
  });
}

}  // namespace gdpa::gpu
