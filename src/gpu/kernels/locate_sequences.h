// The host file of kernels/portable/locate_sequences.cuh, which finds the rows of each sequence.
#pragma once

#include <algorithm>
#include <limits>

#include "gdpa/attention.h"
#include "gpu/launch.h"
#include "gpu/sequences.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct LocateSequences : NoConfig {
  using Arguments = portable::LocateSequencesArguments;
  static constexpr KernelNames names = {"portable", "locate_sequences", "locate_sequences", "LocateSequencesArguments"};
};

/// The launch that finds the places for which `plan` has memory.
inline Launch locate_sequences(const SequencesPlan& plan) {
  constexpr int64_t sides = 4;
  return Launch::of(LocateSequences(), sides, [plan](const BoundCall& call) {
    const Problem& problem = call.problem;
    const Params& params = call.params;
    // Sequences of queries do not overlap. More rows than the operand has come from wrong numbers.
    constexpr int64_t any = std::numeric_limits<int64_t>::max();
    Sequences sequences = params.keys;
    sequences.map = {};
    // No entry has more queries than the output has rows.
    const int64_t longest = problem.has_output_offsets ? std::min(problem.rows_o, most_gpu_rows) : most_gpu_rows;
    const auto side = [&](const Sequences& of, int64_t entries, int64_t rows, int64_t most, int64_t most_of_entry,
                          int64_t offset) {
      portable::LocatedSide result{};
      result.sequences = of;
      result.entries = entries;
      result.rows = rows;
      result.most = most;
      result.longest = most_of_entry;
      if (offset < 0) return result;
      result.begins = call.at<int64_t>(offset);
      result.ends = result.begins + entries + 1;
      result.sums = result.ends + entries + 1;
      return result;
    };
    portable::LocateSequencesArguments arguments{
        {side(params.queries, problem.batch, problem.rows_q, problem.rows_q, longest, plan.queries),
         side(params.keys, problem.batch, problem.rows_k, any, most_gpu_rows, plan.keys),
         side(sequences, problem.key_entries(), problem.rows_k, any, most_gpu_rows, plan.owners),
         side(params.queries, problem.batch, problem.rows_q, any, longest, plan.outputs)}};
    arguments.sides[3].places = params.outputs.begins;
    arguments.sides[3].place_rows = problem.rows_o;
    return arguments;
  });
}

}  // namespace gdpa::gpu
