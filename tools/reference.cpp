// Loops over batch entries, heads, queries and keys, following the definition literally.
#include "reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <utility>

#include "tensor_numbers.h"

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

/// The factor of a query, whose row in the query operand is `row`.
double out_scale(const Problem& problem, std::size_t b, int64_t row) {
  if (problem.out_scale_kind == OutScale::Kind::per_row) return problem.out_scale[static_cast<std::size_t>(row)];
  const auto reciprocal = [](int64_t length) { return length > 0 ? 1.0 / static_cast<double>(length) : 0.0; };
  if (problem.out_scale_kind == OutScale::Kind::reciprocal_length_q) return reciprocal(problem.lengths_q[b]);
  if (problem.out_scale_kind == OutScale::Kind::reciprocal_length_k) return reciprocal(problem.lengths_k[b]);
  return problem.out_scale_kind == OutScale::Kind::per_batch ? problem.out_scale[b] : problem.out_scale[0];
}

/// The rounding of a computation in the type of the operands.
class Rounding {
 public:
  Rounding(const Problem& problem, Precision precision)
      : is_of_type_(precision == Precision::of_type),
        is_tf32_(is_of_type_ && problem.allow_tf32),
        dtype_(problem.dtype) {}

  /// The sum of a product: S, dP.
  double product(double number) const { return is_of_type_ && !is_tf32_ ? rounded_to(dtype_, number) : number; }
  /// An operand of the next product: P, dS.
  double operand(double number) const { return is_tf32_ ? rounded_to_tf32(number) : product(number); }

  std::vector<double> operands(std::vector<double> numbers) const {
    if (is_tf32_) std::transform(numbers.begin(), numbers.end(), numbers.begin(), rounded_to_tf32);
    return numbers;
  }
  void results(std::vector<double>& numbers) const {
    if (!is_of_type_) return;
    for (double& number : numbers) number = rounded_to(dtype_, number);
  }

 private:
  static double rounded_to_tf32(double number) {
    constexpr int significant_bits = 11;
    int exponent = 0;
    const double fraction = std::frexp(number, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(fraction, significant_bits)), exponent - significant_bits);
  }

  bool is_of_type_;
  bool is_tf32_;
  DType dtype_;
};

/// The gradients of the tensors of the function. Several threads add to them.
class TensorGradients {
 public:
  TensorGradients(const TensorNumbers& numbers, std::size_t tensors) : gradients_(tensors) {
    for (std::size_t n = 0; n < tensors; ++n) gradients_[n].sums.resize(numbers.size(n));
  }

  void add(const TensorNumbers::Element& element, double term) {
    Reference::OfTensor& gradient = gradients_[element.tensor];
    std::atomic_ref(gradient.sums[element.index]).fetch_add(term, std::memory_order_relaxed);
    std::atomic_ref(gradient.squares).fetch_add(term * term, std::memory_order_relaxed);
  }

  std::vector<Reference::OfTensor> take() { return std::move(gradients_); }

 private:
  std::vector<Reference::OfTensor> gradients_;
};

}  // namespace

Reference compute_reference(const Problem& problem, const Workload& workload, Precision precision) {
  const Rounding rounding(problem, precision);
  std::vector<double> query = rounding.operands(workload.query.to_double());
  std::vector<double> key = rounding.operands(workload.key.to_double());
  std::vector<double> value = rounding.operands(workload.value.to_double());
  std::vector<double> grad_output = rounding.operands(workload.grad_output.to_double());
  Reference result{std::vector<double>(grad_output.size()),
                   std::vector<double>(query.size()),
                   std::vector<double>(key.size()),
                   std::vector<double>(value.size()),
                   {}};

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

  const ScoreDefinition definition(problem.activation, problem.heads_q);
  const TensorNumbers tensors(problem.tensors, workload.tensors);
  const TensorNumbers of_mask(problem.mask_tensors, workload.mask_tensors);
  TensorGradients grad_tensors(tensors, problem.tensors.size());

  std::atomic<int64_t> rows_done = 0;
  const auto do_head = [&](int64_t head) {
    const int64_t key_head = head / group;
    std::vector<TensorNumbers::Element> elements;
    for (std::size_t b = 0; b < problem.lengths_q.size(); ++b) {
      for (int64_t i = 0; i < queries.lengths[b]; ++i, ++rows_done) {
        const double factor = out_scale(problem, b, queries.first[b] + i);
        const double* const query_row = q.row(queries.first[b] + i, head);
        const double* const grad_o_row = grad_o.row(outputs.first[b] + i, head);
        for (int64_t j = 0; j < keys.lengths[b]; ++j) {
          const ScorePlace place{.batch = static_cast<int64_t>(b),
                                 .head = head,
                                 .q_idx = i,
                                 .kv_idx = j,
                                 .len_q = queries.lengths[b],
                                 .len_k = keys.lengths[b],
                                 .q_row = queries.first[b] + i,
                                 .kv_row = keys.first[b] + j};
          if (!keeps(problem, of_mask, place)) continue;
          const double* const k_row = k.row(keys.first[b] + j, key_head);
          const double* const v_row = v.row(keys.first[b] + j, key_head);
          const double s = rounding.product(scale * dot(query_row, k_row, d));
          elements.clear();
          const ScoreDerivatives f = definition.evaluate(place, s, [&](const TensorRead& read) {
            elements.push_back(tensors.element(read, place));
            return tensors.number(elements.back());
          });
          const double p = rounding.operand(f.value);
          const double grad_p = rounding.product(factor * dot(grad_o_row, v_row, d_v));
          const double grad_s = rounding.operand(grad_p * f.by_score);
          for (std::size_t n = 0; n < elements.size(); ++n) grad_tensors.add(elements[n], grad_p * f.by_read[n]);
          add_scaled(o.row(outputs.first[b] + i, head), factor * p, v_row, d_v);
          add_scaled(grad_v.row(keys.first[b] + j, key_head), factor * p, grad_o_row, d_v);
          add_scaled(grad_q.row(queries.first[b] + i, head), scale * grad_s, k_row, d);
          add_scaled(grad_k.row(keys.first[b] + j, key_head), scale * grad_s, query_row, d);
        }
        if (!problem.add_query) continue;
        add_scaled(o.row(outputs.first[b] + i, head), 1, query_row, d);
        add_scaled(grad_q.row(queries.first[b] + i, head), 1, grad_o_row, d);
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
  Progress progress(precision == Precision::exact ? "fp64 reference" : "reference in the type",
                    sum(problem.lengths_q) * problem.heads_q);
  while (working > 0) {
    progress.advance_to(rows_done);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::thread& thread : crew) thread.join();
  result.grad_tensors = grad_tensors.take();
  for (std::vector<double>* of : {&result.output, &result.grad_query, &result.grad_key, &result.grad_value}) {
    rounding.results(*of);
  }
  return result;
}

}  // namespace gdpa::tool
