// The checks of out_scale, the factor of the output.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "api/check_parts.h"
#include "api/message.h"
#include "definition/tensor_types.h"
#include "expression/function.h"

namespace gdpa::api {
namespace {

constexpr std::string_view out_scale_name = "out_scale";

/// Checks the dtype and the memory of the numbers. Returns them with one of two kinds, for float32 or float64.
OutputScale numbers_of(const TensorView& numbers, OutputScale::Kind floats, OutputScale::Kind doubles,
                       const Common& common) {
  if (numbers.dtype != DType::float32 && numbers.dtype != DType::float64) {
    refuse_type(out_scale_name, "dtype float32 or float64", name(numbers.dtype), "convert it");
  }
  check_memory(out_scale_name, numbers, common);
  OutputScale result;
  result.kind = numbers.dtype == DType::float32 ? floats : doubles;
  result.numbers = numbers.data;
  return result;
}

/// out_scale with one number for each row of the query.
OutputScale row_scale_of(const TensorView& numbers, int64_t batch, const Side& queries, const Common& common) {
  const int64_t length = queries.sequences.length;
  if (queries.form != Form::dense) {
    check_one_for_each(out_scale_name, numbers, queries.rows, "row of the query");
  } else if (numbers.rank != 2 || size(numbers, 0) != batch || size(numbers, 1) != length) {
    refuse(out_scale_name, fmt::format("shape ({}, {}), one number for each query", batch, length),
           rank_and_shape(numbers), "correct the shape");
  }
  if (common.is_on_gpu && numbers.dtype == DType::float64) {
    refuse_type(out_scale_name, "dtype float32 for one number for each row of the query on a GPU", "float64",
                "convert it");
  }
  using Kind = OutputScale::Kind;
  OutputScale result = numbers_of(numbers, Kind::per_row_float, Kind::per_row_double, common);
  result.row_stride = row_stride_of(out_scale_name, numbers);
  if (numbers.data == nullptr || !common.is_on_cpu()) return result;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t first = queries.sequences.first_row(b);
    for (int64_t i = 0; i < queries.sequences.size(b); ++i) check_finite(out_scale_name, result.of_row(first + i));
  }
  return result;
}

/// out_scale with one number for each batch entry.
OutputScale batch_scale_of(const TensorView& numbers, int64_t batch, const Common& common) {
  check_one_for_each(out_scale_name, numbers, batch, "batch entry");
  using Kind = OutputScale::Kind;
  const OutputScale result = numbers_of(numbers, Kind::per_batch_float, Kind::per_batch_double, common);
  if (batch > 1 && stride(numbers, 0) != 1) {
    refuse(out_scale_name, "stride 1", fmt::format("stride {}", stride(numbers, 0)), "make it contiguous");
  }
  if (numbers.data == nullptr || !common.is_on_cpu()) return result;
  for (int64_t b = 0; b < batch; ++b) check_finite(out_scale_name, result.of(b, 0, 0));
  return result;
}

}  // namespace

OutputScale output_scale_of(const OutScale& out_scale, const Sides& sides, const Common& common) {
  using Kind = OutScale::Kind;
  if (out_scale.kind == Kind::per_row) return row_scale_of(out_scale.per_row, sides.batch, sides.queries, common);
  if (out_scale.kind == Kind::per_batch) return batch_scale_of(out_scale.per_batch, sides.batch, common);
  static_assert(static_cast<int>(Kind::reciprocal_length_k) == static_cast<int>(OutputScale::Kind::reciprocal_length_k),
                "the kinds without tensors have one order");
  OutputScale result;
  result.kind = static_cast<OutputScale::Kind>(out_scale.kind);
  if (out_scale.kind != Kind::number) return result;
  check_finite(out_scale_name, out_scale.number);
  result.number = out_scale.number;
  return result;
}

int64_t row_stride_of(std::string_view who, const TensorView& numbers) {
  const bool is_dense = numbers.rank == 2;
  const int64_t batch = size(numbers, 0), length = size(numbers, numbers.rank - 1);
  if (is_dense && batch > 1 && length > 1 && stride(numbers, 0) != length * stride(numbers, 1)) {
    refuse(who, "rows of one distance in memory",
           fmt::format("strides {} and {}", stride(numbers, 0), stride(numbers, 1)), "make it contiguous");
  }
  return stride(numbers, is_dense && length == 1 ? 0 : numbers.rank - 1);
}

void check_row_scale(const activation::Function& function) {
  const std::size_t tensors = function.parameters().size();
  const auto reads = static_cast<std::size_t>(function.facts().reads);
  if (tensors >= most_parameters || reads >= activation::most_reads) {
    refuse(out_scale_name,
           fmt::format("one number for each row of the query with a function of at most {} tensors and {} reads",
                       most_parameters - 1, activation::most_reads - 1),
           fmt::format("{} tensors and {} reads", tensors, reads), "multiply the output yourself");
  }
}

std::shared_ptr<const activation::Function> multiply_by_row_scale(const activation::Function& function,
                                                                  Problem& problem, Params& params) {
  const std::size_t tensor = function.parameters().size();
  BoundTensor& numbers = params.parameters[tensor];
  const bool is_double = params.out_scale.kind == OutputScale::Kind::per_row_double;
  numbers.data = const_cast<void*>(params.out_scale.numbers);  // only read
  numbers.type = is_double ? NumberType::float64 : NumberType::float32;
  numbers.rank = 1;
  numbers.sizes[0] = problem.rows_q;
  numbers.strides[0] = params.out_scale.row_stride;
  const int64_t extent = problem.rows_q * std::max<int64_t>(1, std::abs(numbers.strides[0]));
  const bool is_wide = extent > std::numeric_limits<int32_t>::max() / static_cast<int64_t>(sizeof(float));
  problem.tensor_types |= tensor_type_bits(tensor, numbers.type, is_wide);
  problem.out_scale = OutScale::Kind::number;
  params.out_scale = {};
  return function.times_row_scale();
}

}  // namespace gdpa::api
