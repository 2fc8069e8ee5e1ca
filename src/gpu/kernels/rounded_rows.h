// What the host files of reduce and add_rows share: their kernels round fp32 sums into the rows of a result.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "gpu/kernels/attention.h"
#include "gpu/workspace.h"

namespace gdpa::gpu {

struct RoundedRowsKernel {
  GpuElement element = GpuElement::bfloat16;  ///< of the result
  int columns = 0;                            ///< of a head
  bool aligned = false;

  static constexpr bool reads_function = false, reads_mask = false;
  auto operator<=>(const RoundedRowsKernel&) const = default;

  std::string properties() const { return fmt::format("{} d={}", in_source(element), columns); }

  SourceParts source(const Expressions& /*expressions*/) const {
    ConfigText config;
    config.type("Element", fmt::format("gdpa::{}", in_source(element)));
    config.flag("aligned", aligned);
    config.number("columns", columns);
    return {.config = config.text()};
  }
};

/// fp32 results are stored as they are, whatever the products of the call are.
inline RoundedRowsKernel rounded_rows_for(const Call& call, int64_t columns) {
  return {element_of(call.problem.dtype, false), static_cast<int>(columns), call.aligned};
}

inline int64_t ctas_of_rounded_rows(const Call& call, int64_t rows, int64_t columns) {
  constexpr int64_t threads = 256, ctas_per_multiprocessor = 32;
  const int64_t groups = rows * padded_columns(columns) / column_group;
  return std::min(divide_up(groups, threads), ctas_per_multiprocessor * call.gpu.multiprocessors);
}

}  // namespace gdpa::gpu
