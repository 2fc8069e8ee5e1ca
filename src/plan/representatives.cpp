// Problems on both sides of the planner's thresholds; see representatives.h.
#include "plan/representatives.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <span>

#include "plan/thresholds.h"

namespace gdpa::plan {
namespace {

/// No rows, one row, the numbers around each threshold, and more than all of them.
std::set<int64_t> numbers_around(std::span<const int64_t> thresholds, int64_t unit = 1) {
  std::set<int64_t> numbers = {0, 1, 2};
  for (const int64_t threshold : thresholds) {
    for (const int64_t step : {-1, 0, 1}) numbers.insert(threshold * unit + step);
  }
  numbers.insert(2 * *numbers.rbegin());
  return numbers;
}

// Batch entries and heads count together, except for the number of scores, which decides whether f is exact. One head
// has the fewest scores. With two heads, even the longest of the shortest sequences have too many for exact calls.
static_assert(2 * thresholds::queries_of_one_warpgroup * thresholds::keys_of_a_short_tile >
              thresholds::scores_of_exact_calls);

std::set<int64_t> batches_of(const Problem& problem, const Gpu& gpu) {
  // If both sides are shared, the batch has one entry.
  if (problem.query_form == Form::shared && problem.key_form == Form::shared) return {1};
  return numbers_around(thresholds::of_heads_per_multiprocessor, gpu.multiprocessors);
}

/// Returns the rows of an operand with this mean length.
int64_t rows_of(Form form, int64_t mean_length, int64_t batch) {
  return form == Form::shared ? mean_length : mean_length * std::max<int64_t>(1, batch);
}

}  // namespace

std::vector<Problem> representative_problems(const Problem& problem, const Gpu& gpu) {
  Problem representative = problem;
  const int64_t heads_of_group = problem.heads_q / std::max<int64_t>(1, problem.heads_k);
  std::vector<Problem> result;
  for (const int64_t heads : {1, 2}) {
    for (const int64_t batch : batches_of(problem, gpu)) {
      for (const int64_t queries : numbers_around(thresholds::of_queries)) {
        for (const int64_t keys : numbers_around(thresholds::of_keys)) {
          representative.heads_q = heads_of_group * heads;
          representative.heads_k = heads;
          representative.batch = batch;
          representative.rows_q = rows_of(problem.query_form, queries, batch);
          representative.rows_k = rows_of(problem.key_form, keys, batch);
          result.push_back(representative);
        }
      }
    }
  }
  return result;
}

}  // namespace gdpa::plan
