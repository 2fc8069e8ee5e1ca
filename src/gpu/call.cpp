// See call.h.
#include "gpu/call.h"

#include <algorithm>

#include "definition/divide.h"
#include "gpu/thresholds.h"

namespace gdpa::gpu {

bool is_aligned(const Operand& operand, int64_t element_bytes) {
  constexpr int64_t copy_bytes = 16;  // of one copy of a kernel
  const auto address = reinterpret_cast<std::uintptr_t>(operand.data);
  const int64_t per_copy = copy_bytes / element_bytes;
  return address % copy_bytes == 0 && operand.batch_stride % per_copy == 0 && operand.row_stride % per_copy == 0 &&
         operand.head_stride % per_copy == 0;
}

bool is_aligned(const Problem& problem, const Params& params) {
  const int64_t bytes = size_in_bytes(problem.dtype);
  return is_aligned(params.query, bytes) && is_aligned(params.key, bytes) && is_aligned(params.value, bytes) &&
         is_aligned(params.output, bytes) && is_aligned(params.grad_output, bytes) &&
         is_aligned(params.grad_query, bytes) && is_aligned(params.grad_key, bytes) &&
         is_aligned(params.grad_value, bytes);
}

OperandShape shape_of(const Problem& problem, Operand Params::*operand) {
  const auto is_one_of = [&](auto... members) { return ((operand == members) || ...); };
  const bool has_head_dim = is_one_of(&Params::query, &Params::key, &Params::grad_query, &Params::grad_key);
  const int64_t columns = has_head_dim ? problem.head_dim : problem.head_dim_v;
  if (is_one_of(&Params::key, &Params::value, &Params::grad_key, &Params::grad_value)) {
    return {&Params::keys, problem.key_form, problem.key_entries(), problem.rows_k, problem.heads_k, columns};
  }
  return {&Params::queries, problem.query_form, problem.batch, problem.rows_q, problem.heads_q, columns};
}

bool has_few_scores(const Problem& problem) {
  if (problem.deterministic) return false;
  const bool is_dense = problem.query_form == Form::dense && problem.key_form == Form::dense;
  const int64_t batch = std::max<int64_t>(1, problem.batch), key_entries = std::max<int64_t>(1, problem.key_entries());
  const int64_t rows_q = problem.rows_q * (problem.query_form == Form::shared ? batch : 1);
  const int64_t most_keys =
      is_dense ? divide_up(problem.rows_k, key_entries) : problem.rows_k;  // that a query can have
  const auto scores = static_cast<double>(problem.heads_q) * static_cast<double>(rows_q) *
                      static_cast<double>(most_keys);  // exact up to 2^53, and never overflows
  return scores <= thresholds::scores_of_exact_calls;
}

Accuracy accuracy_of(const Problem& problem) {
  if (problem.dtype == DType::float32) return Accuracy::exact;
  return has_few_scores(problem) ? Accuracy::exact : problem.accuracy;
}

bool needs_many_registers(const Call& call) {
  return call.facts().reads > 0 || call.facts().has_long_steps(accuracy_of(call.problem));
}

}  // namespace gdpa::gpu
