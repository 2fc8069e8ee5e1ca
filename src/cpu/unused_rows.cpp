// See unused_rows.h.
#include "cpu/unused_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace gdpa::cpu {
namespace {

/// The rows that belong to no sequence, counted over all sequences, in rising order. The sequences begin where `side`
/// says, and have the sizes that `sizes` says.
std::vector<Range> unused_rows(const Sequences& side, const Sequences& sizes, int64_t batch, int64_t count) {
  std::vector<Range> used;
  for (int64_t b = 0; b < batch; ++b) {
    if (sizes.size(b) > 0) used.push_back({side.first_token(b), side.first_token(b) + sizes.size(b)});
  }
  const auto is_before = [](const Range& a, const Range& b) { return a.begin < b.begin; };
  if (!std::is_sorted(used.begin(), used.end(), is_before)) std::sort(used.begin(), used.end(), is_before);
  std::vector<Range> unused;
  int64_t row = 0;
  for (const Range& range : used) {
    if (row < range.begin) unused.push_back({row, range.begin});
    row = std::max(row, range.end);
  }
  if (row < count) unused.push_back({row, count});
  return unused;
}

void clear(const Operand& operand, const std::vector<Range>& unused, const Sequences& side, int64_t heads,
           int64_t row_bytes, int64_t element_bytes) {
  auto* data = static_cast<std::byte*>(operand.data);
  for (const Range& range : unused) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      const int64_t sequence = side.is_jagged() ? 0 : row / side.length;
      const int64_t row_of_sequence = side.is_jagged() ? row : row % side.length;
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t offset =
            sequence * operand.batch_stride + row_of_sequence * operand.row_stride + head * operand.head_stride;
        std::memset(data + offset * element_bytes, 0, static_cast<std::size_t>(row_bytes));
      }
    }
  }
}

}  // namespace

void clear_unused_rows(const Problem& problem, const Params& params) {
  const int64_t element_bytes = size_in_bytes(problem.dtype);
  const auto clear_queries = [&](const Operand& operand, const Sequences& side, int64_t rows, int64_t width) {
    if (!side.is_jagged()) return;
    clear(operand, unused_rows(side, params.queries, problem.batch, rows), side, problem.heads_q, width * element_bytes,
          element_bytes);
  };
  if (problem.direction == Direction::forward) {
    if (problem.zeroes_output) {
      clear_queries(params.output, params.output_side(), problem.rows_o, problem.head_dim_v);
    }
    return;
  }
  if (problem.wanted.query) clear_queries(params.grad_query, params.queries, problem.rows_q, problem.head_dim);
  // No query entry may have some of the keys of a batch map.
  const bool has_unused_keys = problem.key_form == Form::jagged || problem.has_batch_map;
  if (!has_unused_keys || !(problem.wanted.key || problem.wanted.value)) return;
  const std::vector<Range> unused = unused_rows(params.keys, params.keys, problem.batch, problem.rows_k);
  const auto clear_keys = [&](const Operand& operand, int64_t width) {
    clear(operand, unused, params.keys, problem.heads_k, width * element_bytes, element_bytes);
  };
  if (problem.wanted.key) clear_keys(params.grad_key, problem.head_dim);
  if (problem.wanted.value) clear_keys(params.grad_value, problem.head_dim_v);
}

}  // namespace gdpa::cpu
