// The definition of src/definition/params.h once more, in fp64 and as naively as can be: loops over batch entries,
// heads, queries and keys, sharing no code with what it judges.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace gdpa::test {

/// A dense (rows, heads, width) array of doubles.
struct Dense {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t width = 0;
  std::vector<double> values = {};

  static Dense zeros(int64_t rows, int64_t heads, int64_t width) {
    return {rows, heads, width, std::vector<double>(static_cast<std::size_t>(rows * heads * width), 0.0)};
  }
  double* at(int64_t row, int64_t head) { return values.data() + (row * heads + head) * width; }
  const double* at(int64_t row, int64_t head) const { return values.data() + (row * heads + head) * width; }
};

/// The rows of one batch entry: where they begin in the queries, in the output, and in the keys.
struct Entry {
  int64_t query_begin = 0;
  int64_t output_begin = 0;
  int64_t key_begin = 0;
  int64_t length_q = 0;
  int64_t length_k = 0;
  double out_scale = 1;
};

struct Reference {
  Dense query, key, value;
  std::vector<Entry> entries;
  int64_t output_rows = 0;
  std::function<double(double)> function;
  std::function<double(double)> derivative;
  /// What P and dS go through before their products, and S and dP after theirs. The exact result rounds nothing.
  std::function<double(double)> round_operand = [](double number) { return number; };
  std::function<double(double)> round_product = [](double number) { return number; };
  double scale = 1;
  int64_t left = -1;
  int64_t right = -1;
  bool bottom_right = true;

  bool meets(const Entry& entry, int64_t i, int64_t j) const {
    const int64_t shift = bottom_right ? entry.length_k - entry.length_q : 0;
    if (left >= 0 && i + shift - j > left) return false;  // no sum with a side, which may be the largest integer
    if (right >= 0 && j - i - shift > right) return false;
    return true;
  }
};

inline double dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

inline void add(double factor, const double* from, double* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

/// Calls body(entry, query row, output row, key row, query head, key head, score) for every pair that the mask keeps.
template <class Body>
void for_each_pair(const Reference& problem, const Body& body) {
  const int64_t heads_q = problem.query.heads;
  for (const Entry& entry : problem.entries) {
    for (int64_t head = 0; head < heads_q; ++head) {
      const int64_t key_head = head / (heads_q / problem.key.heads);
      for (int64_t i = 0; i < entry.length_q; ++i) {
        for (int64_t j = 0; j < entry.length_k; ++j) {
          if (!problem.meets(entry, i, j)) continue;
          const int64_t query_row = entry.query_begin + i;
          const int64_t key_row = entry.key_begin + j;
          const double score =
              problem.round_product(problem.scale * dot(problem.query.at(query_row, head),
                                                        problem.key.at(key_row, key_head), problem.query.width));
          body(entry, query_row, entry.output_begin + i, key_row, head, key_head, score);
        }
      }
    }
  }
}

inline Dense reference_output(const Reference& problem) {
  Dense output = Dense::zeros(problem.output_rows, problem.query.heads, problem.value.width);
  for_each_pair(problem, [&](const Entry& entry, int64_t, int64_t output_row, int64_t key_row, int64_t head,
                             int64_t key_head, double score) {
    add(entry.out_scale * problem.round_operand(problem.function(score)), problem.value.at(key_row, key_head),
        output.at(output_row, head), problem.value.width);
  });
  return output;
}

struct ReferenceGradients {
  Dense query, key, value;
};

inline ReferenceGradients reference_gradients(const Reference& problem, const Dense& grad_output) {
  const Dense& query = problem.query;
  const Dense& key = problem.key;
  const Dense& value = problem.value;
  ReferenceGradients gradients{Dense::zeros(query.rows, query.heads, query.width),
                               Dense::zeros(key.rows, key.heads, key.width),
                               Dense::zeros(value.rows, value.heads, value.width)};
  for_each_pair(problem, [&](const Entry& entry, int64_t query_row, int64_t output_row, int64_t key_row, int64_t head,
                             int64_t key_head, double score) {
    const double* grad = grad_output.at(output_row, head);
    add(entry.out_scale * problem.round_operand(problem.function(score)), grad, gradients.value.at(key_row, key_head),
        value.width);
    const double grad_weight =
        problem.round_product(entry.out_scale * dot(grad, value.at(key_row, key_head), value.width));
    const double grad_score = problem.scale * problem.round_operand(grad_weight * problem.derivative(score));
    add(grad_score, key.at(key_row, key_head), gradients.query.at(query_row, head), query.width);
    add(grad_score, query.at(query_row, head), gradients.key.at(key_row, key_head), query.width);
  });
  return gradients;
}

}  // namespace gdpa::test
