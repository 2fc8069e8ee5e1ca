// See work.h.
#include "plan/work.h"

#include <algorithm>
#include <cmath>

#include "plan/cpu_units.h"

namespace gdpa::plan {
namespace {

double mean_length(const Sequences& side, int64_t rows, int64_t batch) {
  if (!side.is_jagged()) return static_cast<double>(side.length);
  return static_cast<double>(rows) / static_cast<double>(batch);
}

double in_all_heads(const Problem& problem, double scores) { return static_cast<double>(problem.heads_q) * scores; }

}  // namespace

double flops_of_scores(const Problem& problem, double scores) {
  const double forward = 2.0 * static_cast<double>(problem.head_dim + problem.head_dim_v);
  const WantedGradients& wanted = problem.wanted;
  const int products = 1 + wanted.query + wanted.key;  // S, dQ and dK
  const bool needs_dp = wanted.query || wanted.key || wanted.parameters != 0;
  const int products_v = needs_dp + wanted.value;  // dP and dV
  const double backward = 2.0 * static_cast<double>(products * problem.head_dim + products_v * problem.head_dim_v);
  return scores * (problem.direction == Direction::forward ? forward : backward);
}

double flops_of(const Problem& problem, const Params& params) {
  double scores = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t length_q = params.queries.size(b);
    scores += kept_scores(params.mask, {0, length_q}, length_q, params.keys.size(b));
  }
  return flops_of_scores(problem, in_all_heads(problem, scores));
}

double flops_of_mean_lengths(const Problem& problem, const Params& params) {
  if (problem.batch == 0) return 0;
  const double length_q = mean_length(params.queries, problem.rows_q, problem.batch);
  const double length_k = mean_length(params.keys, problem.rows_k, problem.key_entries());
  // The fraction of the scores that the mask keeps, for the nearest whole lengths.
  const int64_t whole_q = std::max<int64_t>(1, std::llround(length_q));
  const int64_t whole_k = std::max<int64_t>(1, std::llround(length_k));
  const double fraction = kept_scores(params.mask, {0, whole_q}, whole_q, whole_k) /
                          (static_cast<double>(whole_q) * static_cast<double>(whole_k));
  return flops_of_scores(problem,
                         in_all_heads(problem, static_cast<double>(problem.batch) * length_q * length_k * fraction));
}

double traffic_of(const Problem& problem, const Params& params) {
  double rows_of_output = 0;
  for (int64_t b = 0; b < problem.batch; ++b) rows_of_output += static_cast<double>(params.queries.size(b));
  const auto heads_q = static_cast<double>(problem.heads_q);
  const auto head_dim = static_cast<double>(problem.head_dim);
  const auto head_dim_v = static_cast<double>(problem.head_dim_v);
  const double query = static_cast<double>(problem.rows_q) * heads_q * head_dim;
  const double key_rows = static_cast<double>(problem.rows_k) * static_cast<double>(problem.heads_k);
  const double key = key_rows * head_dim, value = key_rows * head_dim_v;
  const double output = rows_of_output * heads_q * head_dim_v;
  double elements = query + key + value + output;
  if (problem.direction == Direction::backward) {
    if (problem.wanted.query) elements += query;
    if (problem.wanted.key) elements += key;
    if (problem.wanted.value) elements += value;
  }
  return elements * static_cast<double>(size_in_bytes(problem.dtype));
}

}  // namespace gdpa::plan
