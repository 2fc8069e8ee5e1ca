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
    if (sizes.size(b) > 0) used.push_back({side.first_row(b), side.first_row(b) + sizes.size(b)});
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

/// Writes zeros, or the rows of `source` if it is not null.
void fill(const Operand& operand, const Operand* source, const std::vector<Range>& unused, const Sequences& side,
          int64_t heads, int64_t row_bytes, int64_t element_bytes) {
  for (const Range& range : unused) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      const int64_t sequence = side.is_jagged() ? 0 : row / side.length;
      const int64_t row_of_sequence = side.is_jagged() ? row : row % side.length;
      for (int64_t head = 0; head < heads; ++head) {
        const auto row_in = [&](const Operand& of) {
          const int64_t offset = sequence * of.batch_stride + row_of_sequence * of.row_stride + head * of.head_stride;
          return static_cast<std::byte*>(of.data) + offset * element_bytes;
        };
        const auto bytes = static_cast<std::size_t>(row_bytes);
        if (source == nullptr) {
          std::memset(row_in(operand), 0, bytes);
        } else {
          std::memcpy(row_in(operand), row_in(*source), bytes);
        }
      }
    }
  }
}

}  // namespace

void fill_unused_rows(const Problem& problem, const Params& params, const Operand* added) {
  const int64_t element_bytes = size_in_bytes(problem.dtype);
  const auto fill_queries = [&](const Operand& operand, const Sequences& side, int64_t rows, int64_t width) {
    if (!side.is_jagged()) return;
    fill(operand, added, unused_rows(side, params.queries, problem.batch, rows), side, problem.heads_q,
         width * element_bytes, element_bytes);
  };
  if (problem.direction == Direction::forward) {
    if (problem.zeroes_output) {
      fill_queries(params.output, params.output_side(), problem.rows_o, problem.head_dim_v);
    }
    return;
  }
  if (problem.wanted.query) {
    fill_queries(params.grad_query, params.queries, problem.rows_q, problem.head_dim);
  }
  // No query entry may have some of the keys of a batch map.
  const bool has_unused_keys = problem.key_form == Form::jagged || problem.has_batch_map;
  if (!has_unused_keys || !(problem.wanted.key || problem.wanted.value)) return;
  const std::vector<Range> unused = unused_rows(params.keys, params.keys, problem.batch, problem.rows_k);
  const auto clear_keys = [&](const Operand& operand, int64_t width) {
    fill(operand, nullptr, unused, params.keys, problem.heads_k, width * element_bytes, element_bytes);
  };
  if (problem.wanted.key) clear_keys(params.grad_key, problem.head_dim);
  if (problem.wanted.value) clear_keys(params.grad_value, problem.head_dim_v);
}

}  // namespace gdpa::cpu
