// See tensor_maps.h.
#include "gpu/tensor_maps.h"

#include <algorithm>
#include <string>

#include "gdpa/error.h"
#include "gpu/driver.h"

namespace gdpa::gpu {
namespace {

// The enumerations of the driver's binary interface (cuda.h, CUtensorMap...).
constexpr int float16_elements = 6, bfloat16_elements = 9;
constexpr int no_interleave = 0, swizzle_64_bytes = 2, swizzle_128_bytes = 3, promotion_256_bytes = 3,
              fill_with_zeros = 0;

constexpr int64_t most_stride = int64_t{1} << 40;      // bytes of a map
constexpr int64_t most_rows = 0x7fffffff - (1 << 16);  // coordinates are 32 bits, and a tile may begin past the end

/// An operand with the properties that determine its map.
struct Mapped {
  const Operand& operand;
  const Sequences& side;
  int64_t batch;
  int64_t rows;  ///< packed rows of a jagged operand
  int64_t heads;
  int64_t columns;
  int64_t element_bytes;
  /// The rows of an operand with rows of its own, for the sequences of `side`: O and dO with output_offsets. Otherwise
  /// 0.
  int64_t own_rows = 0;

  bool is_jagged() const { return side.is_jagged(); }
  bool has_pages() const { return side.has_pages(); }
  int64_t extent() const {
    return std::max<int64_t>(1, has_pages() ? side.page_rows : is_jagged() ? rows : side.length);
  }
  bool is_shared() const { return operand.batch_stride == 0; }

  /// Returns the rows from one page to the next. 0: the distance of two pages is not a whole number of rows.
  int64_t page_step() const {
    if (side.page_count <= 1) return side.page_rows;
    const bool is_whole = operand.row_stride > 0 && operand.batch_stride % operand.row_stride == 0;
    return is_whole ? operand.batch_stride / operand.row_stride : 0;
  }
  int64_t batch_step() const { return has_pages() ? page_step() : is_shared() ? 0 : 1; }

  /// Returns the distance from y to y + 1 in elements.
  int64_t stride_y() const {
    return is_jagged() || has_pages() || own_rows > 0 ? operand.row_stride : operand.batch_stride;
  }
  int64_t extent_y() const {
    if (own_rows > 0) return own_rows + 1;
    if (has_pages()) return (side.page_count - 1) * page_step() + side.page_rows + 1;
    return is_jagged() ? rows + 1 : is_shared() ? 1 : std::max<int64_t>(1, batch);
  }

  /// Returns the address of column 0, head 0, x = 0, y = 0. For a jagged or paged operand it lies before the operand.
  std::int64_t address() const {
    const auto data = reinterpret_cast<std::int64_t>(operand.data);
    return is_jagged() || has_pages() ? data - extent() * operand.row_stride * element_bytes : data;
  }

  /// A plan has no output yet. The plan assumes a contiguous output.
  bool is_still_unknown() const {
    return operand.data == nullptr && operand.head_stride == 0 && operand.row_stride == 0 && operand.batch_stride == 0;
  }

  bool can_be_mapped() const {
    if (is_still_unknown()) return true;
    const auto is_possible = [&](int64_t stride, int64_t count) {
      return count <= 1 || (stride > 0 && stride * element_bytes < most_stride);
    };
    if (has_pages() && (page_step() <= 0 || extent_y() > most_rows)) return false;
    return extent() <= most_rows && is_possible(operand.head_stride, heads) &&
           is_possible(operand.row_stride, extent()) && is_possible(stride_y(), extent_y()) &&
           (operand.data == nullptr || address() >= 0);
  }
};

Mapped operand_of(const Problem& problem, const Params& params, Operand Params::*operand) {
  const OperandShape shape = shape_of(problem, operand);
  const bool has_own_rows =
      problem.has_output_offsets && (operand == &Params::output || operand == &Params::grad_output);
  return {params.*operand,
          params.*shape.side,
          shape.entries,
          shape.rows,
          shape.heads,
          shape.columns,
          size_in_bytes(problem.dtype),
          has_own_rows ? problem.rows_o : 0};
}

/// CUtensorMapDataType.
int type_of_elements(DType dtype) {
  if (dtype == DType::bfloat16) return bfloat16_elements;
  if (dtype == DType::float16) return float16_elements;
  throw Error(ErrorKind::runtime, std::string("no tensor map has elements of ") + name(dtype));
}

}  // namespace

bool has_tensor_maps(const Problem& problem, const Params& params) {
  Operand Params::*const output = problem.direction == Direction::forward ? &Params::output : &Params::grad_output;
  Operand Params::*const operands[] = {&Params::query,      &Params::key,      &Params::value,     output,
                                       &Params::grad_query, &Params::grad_key, &Params::grad_value};
  return std::ranges::all_of(operands,
                             [&](auto operand) { return operand_of(problem, params, operand).can_be_mapped(); });
}

pipeline::MappedOperand map_operand(const BoundCall& call, Operand Params::*operand, int box_rows, int box_columns) {
  const Mapped mapped = operand_of(call.problem, call.common.params, operand);
  if (mapped.operand.data == nullptr) return {};  // an operand without rows, which no tile reads or writes
  constexpr int64_t any_stride = 16;              // if the dimension has one coordinate only
  const auto stride = [&](int64_t elements, int64_t count) {
    return static_cast<std::uint64_t>(count > 1 ? elements * mapped.element_bytes : any_stride);
  };
  if (Driver::get().encode_tensor_map == nullptr) {
    throw Error(
        ErrorKind::runtime,
        "GPU: libcuda.so.1 has no cuTensorMapEncodeTiled: the NVIDIA driver is older than CUDA 12.0; update it");
  }
  const std::uint64_t extents[] = {static_cast<std::uint64_t>(mapped.columns), static_cast<std::uint64_t>(mapped.heads),
                                   static_cast<std::uint64_t>(mapped.extent()),
                                   static_cast<std::uint64_t>(mapped.extent_y())};
  const std::uint64_t strides[] = {stride(mapped.operand.head_stride, mapped.heads),
                                   stride(mapped.operand.row_stride, mapped.extent()),
                                   stride(mapped.stride_y(), mapped.extent_y())};
  const std::uint32_t box[] = {static_cast<std::uint32_t>(box_columns), 1, static_cast<std::uint32_t>(box_rows), 1};
  const std::uint32_t every[] = {1, 1, 1, 1};
  pipeline::MappedOperand result{};
  const int swizzle = box_columns == pipeline::box_columns ? swizzle_128_bytes : swizzle_64_bytes;  // as wide as a row
  check(Driver::get().encode_tensor_map(&result.map, type_of_elements(call.problem.dtype), 4,
                                        reinterpret_cast<void*>(mapped.address()), extents, strides, box, every,
                                        no_interleave, swizzle, promotion_256_bytes, fill_with_zeros),
        "encoding a tensor map");
  result.extent = static_cast<int>(mapped.extent());
  result.batch_step = static_cast<int>(mapped.batch_step());
  return result;
}

}  // namespace gdpa::gpu
