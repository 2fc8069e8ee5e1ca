// Call: the data of one call of the CPU backend, and functions that the forward and the backward unit both use.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/convert.h"
#include "cpu/evaluator.h"
#include "cpu/inputs.h"
#include "cpu/mask.h"
#include "cpu/parameter_sums.h"
#include "cpu/products.h"
#include "cpu/workspace.h"
#include "definition/params.h"
#include "plan/cpu_units.h"

namespace gdpa::cpu {

/// T is the type of the operands. All computations between loading and storing are in ComputeType<T>.
template <class T>
struct Call {
  using Compute = ComputeType<T>;

  const Params& params;
  const MaskPlan& mask;
  const InputPlan& inputs;
  const HeadEvaluators& evaluators;
  const plan::CpuSchedule& schedule;
  WantedGradients wanted;
  ParameterSums& parameter_sums;
  double* partial_sums;  ///< schedule.partial_elements; in double, because a long sum in float loses the last bits
  const Operand* added;  ///< the operand that is added to the rows of O or dQ; null: none

  /// The buffers of a unit, at the offsets of schedule.buffers.
  Compute* workspace() const {
    const int64_t bytes = schedule.buffers.total * static_cast<int64_t>(sizeof(Compute));
    return static_cast<Compute*>(thread_workspace(bytes));
  }

  int64_t width_q = round_up(params.head_dim, plan::cpu_vector);  ///< stride of packed rows of Q and K
  int64_t width_v = round_up(params.head_dim_v, plan::cpu_vector);
  int64_t sum_width_k = plan::sum_width(wanted.key, params.head_dim);      ///< stride of sums of dK
  int64_t sum_width_v = plan::sum_width(wanted.value, params.head_dim_v);  ///< stride of sums of dV
};

/// Returns the rows of one sequence and head in an operand, from a row on.
template <class T>
Tile<T> rows_of(const Operand& operand, const Sequences& side, int64_t b, int64_t row, int64_t head) {
  return {static_cast<T*>(operand.data) + operand.offset(side, b, row, head), operand.row_stride};
}

/// Calls `body` with consecutive parts of `range` of at most `most` rows. The parts have equal sizes, rounded up to a
/// multiple of `step`, because a short last tile is slower than equal tiles.
template <class Body>
void for_each_part(Range range, int64_t most, int64_t step, const Body& body) {
  if (range.empty()) return;
  const int64_t parts = divide_up(range.size(), most);
  const int64_t rows = round_up(divide_up(range.size(), parts), step);
  plan::for_each_range(range, rows, body);
}

/// The most terms that are added to a sum in the compute type one by one. Each addition rounds at the size of the whole
/// sum, so the error grows with the square root of the number of terms. A longer sum is a sum of shorter sums.
constexpr int64_t terms_of_sum = 256;

/// sums (rows x columns) += left (rows x depth) * right (depth x columns). With `product`, a buffer with the stride of
/// `sums`, the terms of this product are summed there first. The result is then added to `sums` with one rounding.
template <class Compute>
void add_product(Tile<const Compute> left, Tile<const Compute> right, Tile<Compute> sums, int64_t rows, int64_t columns,
                 int64_t depth, Compute* product) {
  if (product == nullptr) {
    multiply<Compute>(left, right, sums, rows, columns, depth, Sum::add);
    return;
  }
  multiply<Compute>(left, right, {product, sums.stride}, rows, columns, depth, Sum::overwrite);
  conversions<Compute>().add({product, sums.stride}, rows, columns, sums);
}

/// Adds a source to packed sums, row by row through `buffer`, which has `columns` elements.
template <class T>
void add_source(Tile<const T> source, int64_t rows, int64_t columns, Tile<ComputeType<T>> sums,
                ComputeType<T>* buffer) {
  for (int64_t i = 0; i < rows; ++i) {
    conversions<T>().pack(source.at(i), 1, columns, 1, {buffer, columns});
    conversions<ComputeType<T>>().add({buffer, columns}, 1, columns, sums.at(i));
  }
}

/// Writes 0 to rows x columns of a packed tile.
template <class Compute>
void clear(Tile<Compute> tile, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) std::fill_n(tile.at(i).data, columns, Compute{0});
}

/// Multiplies the rows of a packed tile of queries by their numbers of out_scale, if each query has its own.
template <class Compute>
void scale_rows(const Params& params, int64_t b, Range queries, Tile<Compute> tile, int64_t columns) {
  if (!params.out_scale.is_per_row()) return;
  const int64_t first = params.queries.first_row(b);
  for (int64_t i = queries.begin; i < queries.end; ++i) {
    const auto factor = static_cast<Compute>(params.out_scale.of_row(first + i));
    Compute* const row = tile.at(i - queries.begin).data;
    for (int64_t column = 0; column < columns; ++column) row[column] *= factor;
  }
}

/// The tile of scores of some queries and of some columns of a tile of keys.
inline ScoreTile score_tile_of(int64_t b, int64_t head, Range queries, Range keys, Range columns) {
  return {b, head, queries, {keys.begin + columns.begin, keys.begin + columns.end}};
}

/// Calls `body` with the parts of a range of keys whose rows are contiguous in memory: with pages, a part of a page.
template <class Body>
void for_each_run(const Sequences& side, Range keys, const Body& body) {
  for (int64_t begin = keys.begin; begin < keys.end;) {
    const int64_t end = side.has_pages() ? (begin / side.page_rows + 1) * side.page_rows : keys.end;
    body(Range{begin, std::min(end, keys.end)});
    begin = end;
  }
}

/// Packs a tile of keys or values of a key head as rows. Rows up to the next vector boundary are zeros.
template <class T>
void pack_tile(const Params& params, const Operand& operand, int64_t b, int64_t head, Range keys, int64_t width,
               ComputeType<T> factor, Tile<ComputeType<T>> packed) {
  for_each_run(params.keys, keys, [&](Range run) {
    conversions<T>().pack(rows_of<const T>(operand, params.keys, b, run.begin, head), run.size(), width, factor,
                          packed.at(run.begin - keys.begin));
  });
  clear(packed.at(keys.size()), round_up(keys.size(), plan::cpu_vector) - keys.size(), width);
}

/// Packs the transposed tile for the products with queries. Columns up to the next vector boundary are zeros.
template <class T>
void pack_tile_transposed(const Params& params, const Operand& operand, int64_t b, int64_t head, Range keys,
                          int64_t width, Tile<ComputeType<T>> packed) {
  for_each_run(params.keys, keys, [&](Range run) {
    conversions<T>().pack_transposed(rows_of<const T>(operand, params.keys, b, run.begin, head), run.size(), width, 1,
                                     packed.at(0, run.begin - keys.begin));
  });
  clear(packed.at(0, keys.size()), width, round_up(keys.size(), plan::cpu_vector) - keys.size());
}

template <class T>
void forward_unit(const Call<T>& call, const plan::CpuUnit& unit);

/// Adds the gradients of tensors, if wanted, to the sums of a group.
template <class T>
void backward_unit(const Call<T>& call, const plan::CpuUnit& unit, int64_t group);

/// Adds the partial sums of some rows in a fixed order, rounds the result and stores the gradient.
template <class T>
void reduce(const Call<T>& call, const plan::CpuReduction& reduction);

}  // namespace gdpa::cpu
