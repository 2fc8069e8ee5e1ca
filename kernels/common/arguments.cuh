// The arguments that every kernel family passes to its kernels. A plain struct: the host includes this file too.
#pragma once

#include "definition/params.h"

namespace gdpa {

/// The owners of key-major kernels if these are not the batch entries. With a batch map, the owners are the sequences
/// of keys, each once, with the batch entries of each. A CTA has a tile of one sequence, and the queries of all of its
/// entries attend to the tile. portable/group_entries.cuh writes the lists. With RowsLayout, the owner is one sequence
/// with all rows of the operand.
struct KeySequences {
  Sequences side;
  int64_t count;
  const int* entries;      ///< all batch entries, in the order of their sequences
  const int* first_entry;  ///< sequence s has the entries at the places first_entry[s] to first_entry[s + 1] - 1
};

/// Arguments of a forward or backward kernel. An fp32 accumulator of a gradient is contiguous: (rows, heads, padded
/// columns) of the operand, for every dense batch entry or every split of the batch. The kernels choose the order
/// within 16 columns.
struct CommonArguments {
  Params params;
  int64_t packed_rows_q;           ///< rows of a jagged query operand; kernels clamp cumulative lengths to this number
  int64_t packed_rows_k;           ///< the same for jagged keys and values
  KeySequences key_sequences;      ///< of key-major kernels
  const int* keys_overlap;         ///< backward of keys with gaps: whether two sequences of keys have a row in common
  int64_t splits;                  ///< splits of the batch, where the batch shares the operand whose tiles the CTAs own
  float output_factor;             ///< forward: multiplies every output where the scores were not scaled; otherwise 1
  Operand grad_query_accumulator;  ///< portable backward: cleared before; backward_query with queries_shared: `splits`
                                   ///< partial results
  Operand grad_key_accumulator;    ///< backward with keys_shared: `splits` partial results, batch_stride apart
  Operand grad_value_accumulator;  ///< the same for dV
};

/// The threads and the dynamic shared memory of a CTA. Each kernel has a type with these members, <kernel>_cta<Config>.
template <int threads_, int shared_bytes_ = 0>
struct CtaShape {
  static constexpr int threads = threads_, shared_bytes = shared_bytes_;
};

}  // namespace gdpa
