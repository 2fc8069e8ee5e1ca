// The definition of src/definition/params.h once more, in fp64 and as naively as can be: loops over batch entries,
// heads, queries and keys, sharing no code with the library.
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
  int64_t first_scale = 0;  ///< of the first query, in Reference::row_scale
};

/// The place of a score: the batch entry, the query head, the positions in the sequences, their lengths, and the rows
/// of the query and of the key among the rows of all sequences.
struct Place {
  int64_t b = 0;
  int64_t head = 0;
  int64_t i = 0;
  int64_t j = 0;
  int64_t length_q = 0;
  int64_t length_k = 0;
  int64_t row_q = 0;
  int64_t row_k = 0;

  bool operator==(const Place&) const = default;
};

struct ReferenceGradients {
  Dense query, key, value;
  std::vector<std::vector<double>> tensors = {};  ///< of the tensors that the score reads
  std::vector<double> squares = {};               ///< of each tensor: the sum of the squares of all terms
};

struct Reference {
  Dense query, key, value;
  std::vector<Entry> entries;
  int64_t output_rows = 0;
  std::function<double(double)> function;
  std::function<double(double)> derivative;
  /// In place of the two, for a function that reads positions and tensors. The last one adds the gradients of the
  /// tensors, from dP.
  std::function<double(double, const Place&)> function_at = {};
  std::function<double(double, const Place&)> derivative_at = {};
  std::function<void(double, const Place&, double, ReferenceGradients&)> add_gradients_at = {};
  /// What P and dS go through before their products, and S and dP after theirs. The exact result rounds nothing.
  std::function<double(double)> round_operand = [](double number) { return number; };
  std::function<double(double)> round_product = [](double number) { return number; };
  double scale = 1;
  std::vector<double> row_scale = {};  ///< a factor for each query, or none
  int64_t left = -1;
  int64_t right = -1;
  bool bottom_right = true;
  bool add_query = false;  ///< rows of the output are then rows of the query

  /// In addition to the window.
  std::function<bool(const Place&)> keeps_at = {};

  double f(double score, const Place& place) const { return function_at ? function_at(score, place) : function(score); }
  double slope(double score, const Place& place) const {
    return derivative_at ? derivative_at(score, place) : derivative(score);
  }

  double out_scale(const Entry& entry, const Place& place) const {
    return row_scale.empty() ? entry.out_scale : row_scale[static_cast<std::size_t>(entry.first_scale + place.i)];
  }

  bool attends(const Entry& entry, int64_t i, int64_t j) const {
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

inline void add_all(const Dense& from, Dense& to) {
  for (std::size_t i = 0; i < to.values.size(); ++i) to.values[i] += from.values[i];
}

/// Calls body(entry, query row, output row, key row, place, key head, score) for every pair that the mask keeps.
template <class Body>
void for_each_pair(const Reference& problem, const Body& body) {
  const int64_t heads_q = problem.query.heads;
  for (std::size_t b = 0; b < problem.entries.size(); ++b) {
    const Entry& entry = problem.entries[b];
    for (int64_t head = 0; head < heads_q; ++head) {
      const int64_t key_head = head / (heads_q / problem.key.heads);
      for (int64_t i = 0; i < entry.length_q; ++i) {
        for (int64_t j = 0; j < entry.length_k; ++j) {
          if (!problem.attends(entry, i, j)) continue;
          const int64_t query_row = entry.query_begin + i;
          const int64_t key_row = entry.key_begin + j;
          const Place place{static_cast<int64_t>(b), head, i, j, entry.length_q, entry.length_k, query_row, key_row};
          if (problem.keeps_at && !problem.keeps_at(place)) continue;
          const double score =
              problem.round_product(problem.scale * dot(problem.query.at(query_row, head),
                                                        problem.key.at(key_row, key_head), problem.query.width));
          body(entry, query_row, entry.output_begin + i, key_row, place, key_head, score);
        }
      }
    }
  }
}

inline Dense reference_output(const Reference& problem) {
  Dense output = Dense::zeros(problem.output_rows, problem.query.heads, problem.value.width);
  for_each_pair(problem, [&](const Entry& entry, int64_t, int64_t output_row, int64_t key_row, const Place& place,
                             int64_t key_head, double score) {
    add(problem.out_scale(entry, place) * problem.round_operand(problem.f(score, place)),
        problem.value.at(key_row, key_head), output.at(output_row, place.head), problem.value.width);
  });
  if (problem.add_query) add_all(problem.query, output);
  return output;
}

inline ReferenceGradients reference_gradients(const Reference& problem, const Dense& grad_output) {
  const Dense& query = problem.query;
  const Dense& key = problem.key;
  const Dense& value = problem.value;
  ReferenceGradients gradients{Dense::zeros(query.rows, query.heads, query.width),
                               Dense::zeros(key.rows, key.heads, key.width),
                               Dense::zeros(value.rows, value.heads, value.width)};
  for_each_pair(problem, [&](const Entry& entry, int64_t query_row, int64_t output_row, int64_t key_row,
                             const Place& place, int64_t key_head, double score) {
    const double* grad = grad_output.at(output_row, place.head);
    add(problem.out_scale(entry, place) * problem.round_operand(problem.f(score, place)), grad,
        gradients.value.at(key_row, key_head), value.width);
    const double grad_weight =
        problem.round_product(problem.out_scale(entry, place) * dot(grad, value.at(key_row, key_head), value.width));
    const double grad_score = problem.scale * problem.round_operand(grad_weight * problem.slope(score, place));
    if (problem.add_gradients_at) problem.add_gradients_at(score, place, grad_weight, gradients);
    add(grad_score, key.at(key_row, key_head), gradients.query.at(query_row, place.head), query.width);
    add(grad_score, query.at(query_row, place.head), gradients.key.at(key_row, key_head), query.width);
  });
  if (problem.add_query) add_all(grad_output, gradients.query);
  return gradients;
}

}  // namespace gdpa::test
