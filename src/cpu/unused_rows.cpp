// See unused_rows.h.
#include "cpu/unused_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace gdpa::cpu {
namespace {

/// Calls body(row) for the rows that belong to no sequence, counted over all sequences, in rising order. The sequences
/// begin where `side` says, and have the sizes that `sizes` says.
template <class Body>
void for_each_unused_row(const Sequences& side, const Sequences& sizes, int64_t batch, int64_t count,
                         const Body& body) {
  std::vector<Range> used;
  for (int64_t b = 0; b < batch; ++b) {
    if (sizes.size(b) > 0) used.push_back({side.first_row(b), side.first_row(b) + sizes.size(b)});
  }
  const auto is_before = [](const Range& a, const Range& b) { return a.begin < b.begin; };
  if (!std::is_sorted(used.begin(), used.end(), is_before)) std::sort(used.begin(), used.end(), is_before);
  used.push_back({count, count});
  int64_t row = 0;
  for (const Range& range : used) {
    for (; row < range.begin; ++row) body(row);
    row = std::max(row, range.end);
  }
}

}  // namespace

void fill_unused_rows(const Problem& problem, const Params& params, const Operand* added) {
  const int64_t element_bytes = size_in_bytes(problem.dtype);
  // Writes zeros, or the rows of `source` if it is not null.
  const auto fill = [&](const Operand& result, const Operand* source, const Sequences& side, const Sequences& sizes,
                        int64_t rows, int64_t heads, int64_t width) {
    for_each_unused_row(side, sizes, problem.batch, rows, [&](int64_t row) {
      const int64_t sequence = side.is_jagged() ? 0 : row / side.length;
      const int64_t row_of_sequence = side.is_jagged() ? row : row % side.length;
      for (int64_t head = 0; head < heads; ++head) {
        const auto row_in = [&](const Operand& of) {
          const int64_t offset = sequence * of.batch_stride + row_of_sequence * of.row_stride + head * of.head_stride;
          return static_cast<std::byte*>(of.data) + offset * element_bytes;
        };
        const auto bytes = static_cast<std::size_t>(width * element_bytes);
        if (source == nullptr) {
          std::memset(row_in(result), 0, bytes);
        } else {
          std::memcpy(row_in(result), row_in(*source), bytes);
        }
      }
    });
  };
  const auto fill_queries = [&](const Operand& result, const Sequences& side, int64_t rows, int64_t width) {
    if (side.is_jagged()) fill(result, added, side, params.queries, rows, problem.heads_q, width);
  };
  // No query entry may have some of the keys of a batch map.
  const auto fill_keys = [&](const Operand& result, int64_t width) {
    if (!params.keys.is_jagged() && !problem.has_batch_map) return;
    fill(result, nullptr, params.keys, params.keys, problem.rows_k, problem.heads_k, width);
  };
  if (problem.direction == Direction::forward) {
    if (problem.zeroes_output) fill_queries(params.output, params.output_side(), problem.rows_o, problem.head_dim_v);
    return;
  }
  if (problem.wanted.query) fill_queries(params.grad_query, params.queries, problem.rows_q, problem.head_dim);
  if (problem.wanted.key) fill_keys(params.grad_key, problem.head_dim);
  if (problem.wanted.value) fill_keys(params.grad_value, problem.head_dim_v);
}

}  // namespace gdpa::cpu
