// The host file of kernels/portable/clear_gaps.cuh, which writes zeros to the rows of a result that no sequence has.
#pragma once

#include <vector>

#include "definition/divide.h"
#include "gpu/kernels/no_config.h"
#include "gpu/launch.h"
#include "gpu/sequences.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct ClearGaps : NoConfig {
  using Arguments = portable::ClearGapsArguments;
  static constexpr KernelNames names = {"portable", "clear_gaps", "clear_gaps", "ClearGapsArguments"};
  auto operator<=>(const ClearGaps&) const = default;
};

/// A result whose side has gaps.
struct Gaps {
  Sequences Params::*side;  ///< the sequences of its rows
  Operand Params::*result;
  int64_t entries, rows, heads, columns;
};

inline Launch clear_gaps_of(const Gaps& gaps) {
  return Launch::of(ClearGaps(), divide_up(gaps.rows, int64_t{portable::clear_gaps_rows}),
                    [gaps](const BoundCall& call) {
                      const int64_t bytes = size_in_bytes(call.problem.dtype);
                      const Operand& result = call.params.*gaps.result;
                      // The rows of the output are known after locate_sequences only.
                      const bool are_located = gaps.side == &Params::outputs;
                      portable::ClearGapsArguments arguments{};
                      arguments.side = are_located ? call.common.params.outputs : call.params.*gaps.side;
                      if (gaps.side == &Params::keys) arguments.side.map = {};
                      arguments.batch = gaps.entries;
                      arguments.rows = gaps.rows;
                      arguments.heads = gaps.heads;
                      arguments.row_bytes = gaps.columns * bytes;
                      arguments.result = static_cast<unsigned char*>(result.data);
                      arguments.row_stride = result.row_stride * bytes;
                      arguments.head_stride = result.head_stride * bytes;
                      arguments.aligned = is_aligned(result, bytes);
                      return arguments;
                    });
}

/// Adds a launch for each result of the call whose side has gaps.
inline void clear_gaps(const Problem& problem, std::vector<Launch>& launches) {
  const auto of_queries = [&](Operand Params::*result, int64_t columns) {
    launches.push_back(
        clear_gaps_of({&Params::queries, result, problem.batch, problem.rows_q, problem.heads_q, columns}));
  };
  const auto of_keys = [&](Operand Params::*result, int64_t columns) {
    launches.push_back(
        clear_gaps_of({&Params::keys, result, problem.key_entries(), problem.rows_k, problem.heads_k, columns}));
  };
  if (problem.direction == Direction::forward) {
    if (!problem.zeroes_output) return;
    if (problem.has_output_offsets) {
      launches.push_back(clear_gaps_of(
          {&Params::outputs, &Params::output, problem.batch, problem.rows_o, problem.heads_q, problem.head_dim_v}));
    } else if (problem.has_query_gaps) {
      of_queries(&Params::output, problem.head_dim_v);
    }
    return;
  }
  if (locates_queries(problem) && problem.wanted.query) of_queries(&Params::grad_query, problem.head_dim);
  if (problem.has_key_gaps && problem.wanted.key) of_keys(&Params::grad_key, problem.head_dim);
  if (problem.has_key_gaps && problem.wanted.value) of_keys(&Params::grad_value, problem.head_dim_v);
}

}  // namespace gdpa::gpu
