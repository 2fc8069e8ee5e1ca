// The host file of kernels/portable/find_overlap.cuh, which finds whether two sequences of keys have a row in common.
#pragma once

#include "definition/divide.h"
#include "gpu/launch.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct FindOverlap : NoConfig {
  using Arguments = portable::FindOverlapArguments;
  static constexpr KernelNames names = {"portable", "find_overlap", "find_overlap", "FindOverlapArguments"};
};

/// The launch that writes the result to the workspace at `offset`, in front of one bit for each row. All are 0 before.
inline Launch find_overlap(const Problem& problem, int64_t offset) {
  const int64_t ctas = divide_up(problem.key_entries(), int64_t{portable::find_overlap_sequences});
  return Launch::of(FindOverlap(), ctas, [offset](const BoundCall& call) {
    int* const overlap = call.at<int>(offset);
    portable::FindOverlapArguments arguments{call.params.keys, call.problem.key_entries(), call.problem.rows_k,
                                             reinterpret_cast<unsigned*>(overlap + 1), overlap};
    arguments.side.map = {};
    return arguments;
  });
}

}  // namespace gdpa::gpu
