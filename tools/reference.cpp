// Loops over batch entries, heads, queries and keys, following the definition literally.
#include "reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <utility>

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

/// The factor of a query, whose row in the query operand is `row`.
double out_scale(const Problem& problem, std::size_t b, int64_t row) {
  if (problem.out_scale_kind == OutScale::Kind::per_row) return problem.out_scale[static_cast<std::size_t>(row)];
  const auto reciprocal = [](int64_t length) { return length > 0 ? 1.0 / static_cast<double>(length) : 0.0; };
  if (problem.out_scale_kind == OutScale::Kind::reciprocal_length_q) return reciprocal(problem.lengths_q[b]);
  if (problem.out_scale_kind == OutScale::Kind::reciprocal_length_k) return reciprocal(problem.lengths_k[b]);
  return problem.out_scale_kind == OutScale::Kind::per_batch ? problem.out_scale[b] : problem.out_scale[0];
}

/// The tensors of the call as fp64 numbers, and their gradients. Several threads add to the gradients.
class Tensors {
 public:
  Tensors(const Problem& problem, const Workload& workload, int64_t rows_q, int64_t rows_k)
      : problem_(problem), rows_q_(rows_q), rows_k_(rows_k), gradients_(problem.tensors.size()) {
    for (const Tensor& tensor : workload.tensors) {
      numbers_.push_back(tensor.to_double());
      gradients_[numbers_.size() - 1].sums.resize(numbers_.back().size());
    }
  }

  /// A read at a score, as an element of a tensor. Of a packed side, the token is the row of the operand.
  struct Element {
    std::size_t tensor;
    std::size_t index;
  };

  Element element(const TensorRead& read, const ScorePlace& place, int64_t token_q, int64_t token_k) const {
    const std::vector<int64_t>& sizes = problem_.tensors[read.parameter].sizes;
    if (read.indices.empty()) {
      return {read.parameter, numbers_[read.parameter].size() == 1 ? 0 : static_cast<std::size_t>(place.h)};
    }
    int64_t index = 0;
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
      const TensorRead::Index& given = read.indices[axis];
      const bool has_tokens_q = given.can_be_query_token && sizes[axis] == rows_q_;
      const bool has_tokens_k = given.can_be_key_token && sizes[axis] == rows_k_;
      const int64_t position = has_tokens_q ? token_q : has_tokens_k ? token_k : given.position;
      index = index * sizes[axis] + std::clamp<int64_t>(position, 0, sizes[axis] - 1);
    }
    return {read.parameter, static_cast<std::size_t>(index)};
  }

  double number(const Element& element) const { return numbers_[element.tensor][element.index]; }

  void add_gradient(const Element& element, double term) {
    Reference::OfTensor& gradient = gradients_[element.tensor];
    std::atomic_ref(gradient.sums[element.index]).fetch_add(term, std::memory_order_relaxed);
    std::atomic_ref(gradient.squares).fetch_add(term * term, std::memory_order_relaxed);
  }

  std::vector<Reference::OfTensor> take_gradients() { return std::move(gradients_); }

 private:
  const Problem& problem_;
  int64_t rows_q_, rows_k_;
  std::vector<std::vector<double>> numbers_;
  std::vector<Reference::OfTensor> gradients_;
};

}  // namespace

Reference compute_reference(const Problem& problem, const Workload& workload) {
  std::vector<double> query = workload.query.to_double();
  std::vector<double> key = workload.key.to_double();
  std::vector<double> value = workload.value.to_double();
  std::vector<double> grad_output = workload.grad_output.to_double();
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
  Tensors tensors(problem, workload, workload.query.elements() / (problem.heads_q * d),
                  workload.key.elements() / (problem.heads_k * d));

  std::atomic<int64_t> rows_done = 0;
  const auto do_head = [&](int64_t head) {
    const int64_t key_head = head / group;
    std::vector<Tensors::Element> elements;
    for (std::size_t b = 0; b < problem.lengths_q.size(); ++b) {
      for (int64_t i = 0; i < queries.lengths[b]; ++i, ++rows_done) {
        const double factor = out_scale(problem, b, queries.first[b] + i);
        const double* const q_row = q.row(queries.first[b] + i, head);
        const double* const grad_o_row = grad_o.row(outputs.first[b] + i, head);
        for (int64_t j = 0; j < keys.lengths[b]; ++j) {
          if (!keeps(problem.mask, i, j, queries.lengths[b], keys.lengths[b])) continue;
          const double* const k_row = k.row(keys.first[b] + j, key_head);
          const double* const v_row = v.row(keys.first[b] + j, key_head);
          const double s = scale * dot(q_row, k_row, d);
          const ScorePlace place{static_cast<int64_t>(b), head, i, j, queries.lengths[b], keys.lengths[b]};
          elements.clear();
          const ScoreDerivatives f = definition.evaluate(place, s, [&](const TensorRead& read) {
            elements.push_back(tensors.element(read, place, queries.first[b] + i, keys.first[b] + j));
            return tensors.number(elements.back());
          });
          const double grad_p = factor * dot(grad_o_row, v_row, d_v);
          const double grad_s = grad_p * f.by_score;
          for (std::size_t n = 0; n < elements.size(); ++n) tensors.add_gradient(elements[n], grad_p * f.by_read[n]);
          add_scaled(o.row(outputs.first[b] + i, head), factor * f.value, v_row, d_v);
          add_scaled(grad_v.row(keys.first[b] + j, key_head), factor * f.value, grad_o_row, d_v);
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
  result.grad_tensors = tensors.take_gradients();
  return result;
}

double relative_error(const std::vector<double>& got, const std::vector<double>& expected, double squares) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  norm = std::max(norm, squares);
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
