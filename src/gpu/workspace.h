// What the planners of all families need: the tiles of one side of a problem, and the layout of the workspace.
#pragma once

#include <algorithm>
#include <cstdint>

#include "definition/divide.h"
#include "definition/problem.h"
#include "gdpa/attention.h"

namespace gdpa::gpu {

/// One side of the problem: how its rows become tiles.
struct Side {
  Form form;
  int64_t rows;  ///< of the operand
  int64_t batch;

  int64_t length() const { return form == Form::dense && batch > 0 ? rows / batch : rows; }
  int64_t mean_length() const { return form == Form::shared ? rows : rows / std::max<int64_t>(1, batch); }

  /// An upper bound of the tiles of one head over all batch entries, or over `splits` splits of the batch where the
  /// side is shared. The rows of a jagged side before the first offset and after the last one have tiles too.
  int64_t most_tiles(int64_t tile, int64_t splits) const {
    if (form == Form::jagged) return rows / tile + batch + 2;
    return (form == Form::shared ? splits : batch) * divide_up(length(), tile);
  }
};

inline Side queries_of(const Problem& problem) { return {problem.query_form, problem.rows_q, problem.batch}; }
inline Side keys_of(const Problem& problem) { return {problem.key_form, problem.rows_k, problem.key_entries()}; }

/// Whether a problem has the kernels for queries, or keys, that the batch shares. In deterministic mode, a batch of one
/// entry has the same kernels as a larger batch.
inline bool has_shared_queries(const Problem& problem) {
  const bool is_only_side = problem.query_form == Form::shared && problem.key_form != Form::shared;
  return problem.shares_queries() || (problem.deterministic && is_only_side);
}
inline bool has_shared_keys(const Problem& problem) {
  const bool is_only_side = problem.key_form == Form::shared && problem.query_form != Form::shared;
  return problem.shares_keys() || (problem.deterministic && is_only_side);
}

/// The workspace of a call. Its parts are reserved one after the other.
class WorkspaceLayout {
 public:
  WorkspaceLayout() = default;
  /// The first `bytes` bytes are reserved.
  explicit WorkspaceLayout(int64_t bytes) : bytes_(bytes) {}

  /// Reserves `bytes` bytes, aligned. Returns their offset.
  int64_t reserve(int64_t bytes) {
    const int64_t offset = bytes_;
    bytes_ += divide_up(bytes, Workspace::alignment) * Workspace::alignment;
    return offset;
  }

  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

constexpr int64_t column_group = 16;

/// Columns of an fp32 accumulator in memory: head_dim rounded up to a multiple of 16.
constexpr int64_t padded_columns(int64_t columns) { return divide_up(columns, column_group) * column_group; }

}  // namespace gdpa::gpu
