// What the launcher passes to the portable kernels. Plain structs: the host includes this file too.
#pragma once

#include "definition/params.h"

namespace gdpa::portable {

/// Arguments of forward, backward and backward_query. fp32 sums are contiguous, (rows, heads, padded columns) of the
/// operand whose gradient they are, for every dense batch entry; the order within 16 columns is the kernels' own.
struct Arguments {
  Params params;
  int64_t packed_rows_q;   ///< rows of a jagged query operand: offsets are clamped to them
  int64_t packed_rows_k;   ///< of jagged keys and values
  int64_t parts;           ///< that the batch is cut into, where the operand that owns the work is shared
  float output_factor;     ///< forward: of every output, where the scores were not scaled; else 1
  Operand grad_query_sum;  ///< backward: zeroed before; backward_query with queries_shared: `parts` slabs
  Operand grad_key_sum;    ///< backward with keys_shared: `parts` slabs, batch_stride apart
  Operand grad_value_sum;
};

/// The names that a generated source uses: each kernel's own, with Arguments behind it.
using ForwardArguments = Arguments;
using BackwardArguments = Arguments;
using BackwardQueryArguments = Arguments;

struct ReduceArguments {
  const float* sums;    ///< slabs of (rows, heads, padded columns)
  int64_t slab_stride;  ///< floats from one slab to the next
  int64_t slabs;
  int64_t rows;           ///< packed rows, or batch * length, or length where the batch shares the operand
  int64_t rows_in_batch;  ///< rows between batch strides of `output`: its length where dense, else `rows`
  int64_t heads;
  Operand output;
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
