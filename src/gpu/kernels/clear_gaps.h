// The host file of kernels/portable/clear_gaps.cuh, which writes zeros to the rows of a result that no sequence has.
#pragma once

#include <vector>

#include "definition/divide.h"
#include "gpu/launch.h"
#include "gpu/sequences.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct ClearGaps : NoConfig {
  using Arguments = portable::ClearGapsArguments;
  static constexpr KernelNames names = {"portable", "clear_gaps", "clear_gaps", "ClearGapsArguments"};
};

/// The launch for a result whose side has gaps.
inline Launch clear_gaps_of(Operand Params::*of, const OperandShape& shape) {
  return Launch::of(ClearGaps(), divide_up(shape.rows, int64_t{portable::clear_gaps_rows}),
                    [of, shape](const BoundCall& call) {
                      const int64_t bytes = size_in_bytes(call.problem.dtype);
                      const Operand& result = call.params.*of;
                      // The rows of the output are known after locate_sequences only.
                      const bool are_located = shape.side == &Params::outputs;
                      portable::ClearGapsArguments arguments{};
                      arguments.side = are_located ? call.common.params.outputs : call.params.*shape.side;
                      if (shape.side == &Params::keys) arguments.side.map = {};
                      arguments.batch = shape.entries;
                      arguments.rows = shape.rows;
                      arguments.heads = shape.heads;
                      arguments.row_bytes = shape.columns * bytes;
                      arguments.result = static_cast<unsigned char*>(result.data);
                      arguments.row_stride = result.row_stride * bytes;
                      arguments.head_stride = result.head_stride * bytes;
                      arguments.aligned = is_aligned(result, bytes);
                      return arguments;
                    });
}

/// Adds a launch for each result of the call whose side has gaps.
inline void clear_gaps(const Problem& problem, std::vector<Launch>& launches) {
  const auto add_if = [&](bool has_gaps, Operand Params::*result) {
    if (has_gaps) launches.push_back(clear_gaps_of(result, shape_of(problem, result)));
  };
  if (problem.direction == Direction::backward) {
    add_if(locates_queries(problem) && problem.wanted.query, &Params::grad_query);
    add_if(problem.has_key_gaps && problem.wanted.key, &Params::grad_key);
    add_if(problem.has_key_gaps && problem.wanted.value, &Params::grad_value);
  } else if (problem.zeroes_output && problem.has_output_offsets) {
    OperandShape output = shape_of(problem, &Params::output);
    output.side = &Params::outputs;
    output.rows = problem.rows_o;
    launches.push_back(clear_gaps_of(&Params::output, output));
  } else {
    add_if(problem.zeroes_output && problem.has_query_gaps, &Params::output);
  }
}

}  // namespace gdpa::gpu
