// Problems on both sides of the planner's thresholds; see representatives.h.
#include "gpu/representatives.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <span>

#include "definition/divide.h"
#include "gpu/thresholds.h"

namespace gdpa::gpu {
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
  std::set<int64_t> batches = numbers_around(thresholds::of_heads_per_multiprocessor, gpu.multiprocessors);
  // All entries may add a term to one element.
  if (problem.wanted.parameters != 0) batches.merge(numbers_around(thresholds::of_terms));
  return batches;
}

/// Returns the rows of an operand with this mean length.
int64_t rows_of(Form form, int64_t mean_length, int64_t batch) {
  return form == Form::shared ? mean_length : mean_length * std::max<int64_t>(1, batch);
}

/// The sizes of the axes of a tensor whose indices are the batch entry, the head and positions.
struct AxisSizes {
  int64_t entries, heads, queries, keys;

  /// The size of an axis with this index; nothing for other indices.
  std::optional<int64_t> of(std::optional<activation::Index> index) const {
    using activation::Index;
    if (index == Index::batch) return entries;
    if (index == Index::head) return heads;
    if (index == Index::query) return queries;
    if (index == Index::key) return keys;
    return {};
  }
};

void make_contiguous(BoundTensor& tensor) {
  int64_t stride = 1;
  for (int axis = tensor.rank; axis-- > 0; stride *= tensor.sizes[axis]) {
    if (tensor.sizes[axis] == 1 || tensor.strides[axis] != 0) tensor.strides[axis] = stride;
  }
}

/// The params with the sizes of the tensors that the function reads, and of their gradients.
Params with_sizes(Params params, const activation::Function& function, const AxisSizes& sizes) {
  for (const activation::Input& input : function.inputs()) {
    if (input.kind != activation::Input::Kind::read) continue;
    BoundTensor& tensor = params.parameters[input.tensor];
    BoundTensor& gradient = params.grad_parameters[input.tensor];
    const bool has_adjacent_elements = tensor.rank > 0 && tensor.strides[tensor.rank - 1] == 1;
    for (std::size_t axis = 0; axis < input.indices.size(); ++axis) {
      const auto size = sizes.of(activation::bare_index(input.indices[axis], function.inputs()));
      if (size && tensor.sizes[axis] > 1) tensor.sizes[axis] = *size;
      gradient.sizes[axis] = tensor.sizes[axis];
    }
    if (has_adjacent_elements) make_contiguous(tensor);
    make_contiguous(gradient);
  }
  return params;
}

/// Whether an axis of a tensor is as long as the sequences.
bool reads_positions(const activation::Function& function) {
  return std::ranges::any_of(function.inputs(), [&](const activation::Input& input) {
    return std::ranges::any_of(input.indices, [&](const activation::Program& index) {
      return activation::bare_index(index, function.inputs()).has_value();
    });
  });
}

}  // namespace

void visit_representatives(const Problem& problem, const Params& params, const activation::Function& function,
                           const Gpu& gpu, const std::function<void(const Problem&, const Params&)>& visit) {
  // Rows of a dense bias begin at multiples of 16 bytes, or at even elements, or anywhere.
  constexpr int64_t elements_of_alignment = 8;
  constexpr int64_t beyond_alignment[] = {0, 1, 2};
  const bool has_axes = reads_positions(function);
  const auto visit_params = [&](const Problem& of, int64_t queries, int64_t keys) {
    if (!has_axes) return visit(of, params);
    AxisSizes sizes{std::max<int64_t>(1, of.batch), of.heads_q, std::max<int64_t>(1, queries), 1};
    visit(of, with_sizes(params, function, sizes));
    for (const int64_t beyond : beyond_alignment) {
      sizes.keys = std::max<int64_t>(1, divide_up(keys, elements_of_alignment)) * elements_of_alignment + beyond;
      visit(of, with_sizes(params, function, sizes));
    }
  };
  Problem representative = problem;
  const int64_t heads_of_group = problem.heads_q / std::max<int64_t>(1, problem.heads_k);
  for (const int64_t heads : {1, 2}) {
    for (const int64_t batch : batches_of(problem, gpu)) {
      for (const int64_t queries : numbers_around(thresholds::of_queries)) {
        for (const int64_t keys : numbers_around(thresholds::of_keys)) {
          representative.heads_q = heads_of_group * heads;
          representative.heads_k = heads;
          representative.batch = batch;
          representative.rows_q = rows_of(problem.query_form, queries, batch);
          representative.rows_k = rows_of(problem.key_form, keys, batch);
          visit_params(representative, queries, keys);
        }
      }
    }
  }
}

}  // namespace gdpa::gpu
