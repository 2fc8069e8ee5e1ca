// Loops over batch entries, heads, queries and keys, following the definition literally.
#include "reference.h"

#include <atomic>
#include <cmath>
#include <thread>

namespace gdpa::tool {
namespace {

/// The rows of one side: row i of sequence b is row first(b) + i of the operand.
struct Rows {
  std::vector<int64_t> lengths;
  std::vector<int64_t> first;

  Rows(const std::vector<int64_t>& of_batch, bool shared) : lengths(of_batch) {
    int64_t row = 0;
    for (int64_t length : lengths) {
      first.push_back(shared ? 0 : row);
      row += length;
    }
  }
};

struct Matrix {
  std::vector<double>& numbers;
  int64_t heads;
  int64_t columns;

  double* row(int64_t row, int64_t head) { return numbers.data() + (row * heads + head) * columns; }
};

double dot(const double* a, const double* b, int64_t size) {
  double result = 0;
  for (int64_t i = 0; i < size; ++i) result += a[i] * b[i];
  return result;
}

void add_scaled(double* to, double factor, const double* from, int64_t size) {
  for (int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

bool keeps(const Mask& mask, int64_t i, int64_t j, int64_t length_q, int64_t length_k) {
  const int64_t diagonal = mask.diagonal == Diagonal::bottom_right ? i + length_k - length_q : i;
  return (mask.left < 0 || diagonal - j <= mask.left) && (mask.right < 0 || j - diagonal <= mask.right);
}

double out_scale(const Problem& problem, std::size_t b) {
  const auto reciprocal = [](int64_t length) { return length > 0 ? 1.0 / static_cast<double>(length) : 0.0; };
  if (problem.out_scale_kind == OutScale::Kind::reciprocal_length_q) return reciprocal(problem.lengths_q[b]);
  if (problem.out_scale_kind == OutScale::Kind::reciprocal_length_k) return reciprocal(problem.lengths_k[b]);
  return problem.out_scale_kind == OutScale::Kind::per_batch ? problem.out_scale[b] : problem.out_scale[0];
}

}  // namespace

Reference compute_reference(const Problem& problem, const Workload& workload) {
  std::vector<double> query = workload.query.to_double();
  std::vector<double> key = workload.key.to_double();
  std::vector<double> value = workload.value.to_double();
  std::vector<double> grad_output = workload.grad_output.to_double();
  Reference result{std::vector<double>(grad_output.size()), std::vector<double>(query.size()),
                   std::vector<double>(key.size()), std::vector<double>(value.size())};

  const int64_t d = problem.head_dim;
  const int64_t d_v = problem.head_dim_v;
  const int64_t group = problem.heads_q / problem.heads_k;
  const double scale = problem.scale_or_default();
  const Rows queries(problem.lengths_q, problem.form_q == Form::shared);
  const Rows keys(problem.lengths_k, problem.form_k == Form::shared);
  const Rows outputs(problem.lengths_q, false);
  Matrix q{query, problem.heads_q, d}, k{key, problem.heads_k, d}, v{value, problem.heads_k, d_v};
  Matrix grad_o{grad_output, problem.heads_q, d_v}, o{result.output, problem.heads_q, d_v};
  Matrix grad_q{result.grad_query, problem.heads_q, d}, grad_k{result.grad_key, problem.heads_k, d};
  Matrix grad_v{result.grad_value, problem.heads_k, d_v};

  std::atomic<int64_t> rows_done = 0;
  const auto do_head = [&](int64_t head) {
    const int64_t key_head = head / group;
    for (std::size_t b = 0; b < problem.lengths_q.size(); ++b) {
      const double factor = out_scale(problem, b);
      for (int64_t i = 0; i < queries.lengths[b]; ++i, ++rows_done) {
        const double* const q_row = q.row(queries.first[b] + i, head);
        const double* const grad_o_row = grad_o.row(outputs.first[b] + i, head);
        for (int64_t j = 0; j < keys.lengths[b]; ++j) {
          if (!keeps(problem.mask, i, j, queries.lengths[b], keys.lengths[b])) continue;
          const double* const k_row = k.row(keys.first[b] + j, key_head);
          const double* const v_row = v.row(keys.first[b] + j, key_head);
          const double s = scale * dot(q_row, k_row, d);
          const double p = problem.activation.value(s);
          const double grad_s = factor * dot(grad_o_row, v_row, d_v) * problem.activation.derivative(s);
          add_scaled(o.row(outputs.first[b] + i, head), factor * p, v_row, d_v);
          add_scaled(grad_v.row(keys.first[b] + j, key_head), factor * p, grad_o_row, d_v);
          add_scaled(grad_q.row(queries.first[b] + i, head), scale * grad_s, k_row, d);
          add_scaled(grad_k.row(keys.first[b] + j, key_head), scale * grad_s, q_row, d);
        }
      }
    }
  };

  // Query heads that share a key head write the same gradients, so one thread computes such a group.
  std::atomic<int64_t> next_group = 0;
  std::atomic<int> working = 0;
  const auto work = [&] {
    for (int64_t g = next_group++; g < problem.heads_k; g = next_group++) {
      for (int64_t head = g * group; head < (g + 1) * group; ++head) do_head(head);
    }
    --working;
  };
  std::vector<std::thread> crew;
  const auto wanted = std::min<int64_t>(problem.heads_k, std::max(1u, std::thread::hardware_concurrency()));
  working = static_cast<int>(wanted);
  for (int64_t t = 0; t < wanted; ++t) crew.emplace_back(work);
  Progress progress("fp64 reference", sum(problem.lengths_q) * problem.heads_q);
  while (working > 0) {
    progress.advance_to(rows_done);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::thread& thread : crew) thread.join();
  return result;
}

double relative_error(const std::vector<double>& got, const std::vector<double>& expected) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::fabs(norm > 0 ? std::sqrt(error / norm) : std::sqrt(error));  // NaN has a sign too
}

double promised_error(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return 1e-13;
    case DType::float32:
      return 2e-6;
    case DType::float16:
      return 6e-4;
    default:
      return 3e-3;
  }
}

}  // namespace gdpa::tool
