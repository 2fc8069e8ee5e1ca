// See unused_rows.h.
#include "cpu/unused_rows.h"

#include <cstddef>
#include <cstring>

namespace gdpa::cpu {
namespace {

struct Rows {
  const Sequences& sequences;
  Form form;
  int64_t count;
  int64_t batch;
};

void clear(const Operand& operand, const Rows& rows, int64_t heads, int64_t width, int64_t element_bytes) {
  if (rows.form != Form::jagged) return;
  auto* data = static_cast<std::byte*>(operand.data);
  const auto clear_rows = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t offset = row * operand.row_stride + head * operand.head_stride;
        std::memset(data + offset * element_bytes, 0, static_cast<std::size_t>(width * element_bytes));
      }
    }
  };
  clear_rows(0, rows.sequences.begin(0));
  clear_rows(rows.sequences.begin(rows.batch), rows.count);
}

}  // namespace

void clear_unused_rows(const Problem& problem, const Params& params) {
  const Rows queries{params.queries, problem.query_form, problem.rows_q, problem.batch};
  const Rows keys{params.keys, problem.key_form, problem.rows_k, problem.batch};
  const int64_t element_bytes = size_in_bytes(problem.dtype);
  if (problem.direction == Direction::forward) {
    clear(params.output, queries, problem.heads_q, problem.head_dim_v, element_bytes);
    return;
  }
  if (problem.wanted.query) clear(params.grad_query, queries, problem.heads_q, problem.head_dim, element_bytes);
  if (problem.wanted.key) clear(params.grad_key, keys, problem.heads_k, problem.head_dim, element_bytes);
  if (problem.wanted.value) clear(params.grad_value, keys, problem.heads_k, problem.head_dim_v, element_bytes);
}

}  // namespace gdpa::cpu
