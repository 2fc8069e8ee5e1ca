// What the launcher passes to the portable kernels. Plain structs: the host includes this file too.
#pragma once

#include "common/arguments.cuh"

namespace gdpa::portable {

/// The names that a generated source uses: one for each kernel.
using ForwardArguments = CommonArguments;
using BackwardArguments = CommonArguments;
using BackwardQueryArguments = CommonArguments;
using ParameterGradientsArguments = CommonArguments;

struct ReduceArguments {
  const float* partials;  ///< partial results, each (rows, heads, padded columns)
  int64_t split_stride;   ///< floats from one partial result to the next
  int64_t splits;         ///< number of partial results
  int64_t rows;           ///< packed rows, or batch * length, or length where the batch shares the operand
  int64_t rows_in_batch;  ///< rows between batch strides of `output`: its length where dense, else `rows`
  int64_t heads;
  Operand output;
};

/// The sums of the gradients of tensors, contiguous, and the gradients.
struct RoundParametersArguments {
  const void* sums[most_parameters];
  BoundTensor gradients[most_parameters];  ///< null data: not wanted
};

/// Both sides' cumulative lengths, and how far they may reach.
struct CheckOffsetsArguments {
  Sequences queries;
  Sequences keys;
  int64_t batch;
  int64_t rows_q;
  int64_t rows_k;
};

}  // namespace gdpa::portable
