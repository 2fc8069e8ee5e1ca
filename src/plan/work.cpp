// Counting products and bytes; see work.h.
#include "plan/work.h"

#include "plan/cpu_units.h"

namespace gdpa::plan {

double flops_of(const Problem& problem, const Params& params) {
  double kept = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t length_q = params.queries.size(b);
    kept += kept_scores(params.mask, {0, length_q}, length_q, params.keys.size(b));
  }
  const double forward = 2.0 * static_cast<double>(problem.head_dim + problem.head_dim_v);
  const double backward = 2.0 * static_cast<double>(3 * problem.head_dim + 2 * problem.head_dim_v);
  return static_cast<double>(problem.heads_q) * kept * (problem.direction == Direction::forward ? forward : backward);
}

double traffic_of(const Problem& problem, const Params& params) {
  double rows_of_output = 0;
  for (int64_t b = 0; b < problem.batch; ++b) rows_of_output += static_cast<double>(params.queries.size(b));
  const auto heads_q = static_cast<double>(problem.heads_q);
  const auto head_dim = static_cast<double>(problem.head_dim);
  const auto head_dim_v = static_cast<double>(problem.head_dim_v);
  const double query = static_cast<double>(problem.rows_q) * heads_q * head_dim;
  const double key_value =
      static_cast<double>(problem.rows_k) * static_cast<double>(problem.heads_k) * (head_dim + head_dim_v);
  const double output = rows_of_output * heads_q * head_dim_v;
  const double inputs = query + key_value;
  const double elements = problem.direction == Direction::forward ? inputs + output : 2 * inputs + output;
  return elements * static_cast<double>(size_in_bytes(problem.dtype));
}

}  // namespace gdpa::plan
