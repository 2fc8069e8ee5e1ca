// See inputs.h.
#include "cpu/inputs.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <type_traits>

#include "cpu/convert.h"

namespace gdpa::cpu {
namespace {

using activation::Index;
using activation::Input;

/// Converts the elements of a tensor at some offsets to fp64. A 16-bit type is converted as the operands are.
template <class T>
void gather(const BoundTensor& tensor, std::span<const int64_t> offsets, std::span<double> numbers) {
  const T* const data = static_cast<const T*>(tensor.data);
  if constexpr (std::is_arithmetic_v<T>) {
    std::transform(offsets.begin(), offsets.end(), numbers.begin(),
                   [data](int64_t offset) { return static_cast<double>(data[offset]); });
  } else {
    constexpr std::size_t most = 64;
    std::array<T, most> elements;
    std::array<float, most> converted;
    for (std::size_t begin = 0; begin < offsets.size(); begin += most) {
      const std::size_t count = std::min(most, offsets.size() - begin);
      for (std::size_t i = 0; i < count; ++i) elements[i] = data[offsets[begin + i]];
      const auto columns = static_cast<int64_t>(count);
      pack_rows<T>(elements.data(), columns, 1, columns, 1.0F, converted.data(), columns);
      std::copy_n(converted.begin(), count, numbers.begin() + static_cast<std::ptrdiff_t>(begin));
    }
  }
}

void gather(const BoundTensor& tensor, std::span<const int64_t> offsets, std::span<double> numbers) {
  switch (tensor.type) {
    case NumberType::float32:
      return gather<float>(tensor, offsets, numbers);
    case NumberType::float64:
      return gather<double>(tensor, offsets, numbers);
    case NumberType::bfloat16:
      return gather<BFloat16>(tensor, offsets, numbers);
    case NumberType::float16:
      return gather<Float16>(tensor, offsets, numbers);
    case NumberType::int32:
      return gather<int32_t>(tensor, offsets, numbers);
    case NumberType::int64:
      return gather<int64_t>(tensor, offsets, numbers);
  }
}

double number_of_head(const BoundTensor& tensor, int64_t head) {
  const int64_t offset = tensor.offset_of_head(head);
  double number = 0;
  gather(tensor, {&offset, 1}, {&number, 1});
  return number;
}

/// Returns the nearest index of an axis that exists. An index that is not a number becomes 0.
int64_t clamped(const BoundTensor& tensor, int axis, double index) {
  const auto last = static_cast<double>(tensor.sizes[axis] - 1);
  return index >= last ? tensor.sizes[axis] - 1 : index > 0 ? static_cast<int64_t>(index) : 0;
}

/// Adds the part of one axis to the offsets of a row.
void add_axis(const BoundTensor& tensor, int axis, const double* index, double first, int64_t stride,
              std::vector<int64_t>& offsets) {
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] += clamped(tensor, axis, index[i] + first) * stride;
}

}  // namespace

Evaluator::Inputs inputs_of_head(const activation::Function& function, const Params& params, int64_t head) {
  Evaluator::Inputs numbers;
  for (const Input& input : function.inputs()) {
    if (input.kind == Input::Kind::number) {
      numbers.emplace_back(number_of_head(params.parameters[input.tensor], head));
    } else if (input.kind == Input::Kind::index && input.index == Index::head) {
      numbers.emplace_back(static_cast<double>(head));
    } else {
      numbers.emplace_back(std::nullopt);
    }
  }
  return numbers;
}

template <class Compute>
TileInputs<Compute>::TileInputs(const activation::Function& function, const Params& params)
    : function_(function), params_(params) {
  if (function.is_same_in_head()) return;
  const std::size_t count = function.inputs().size();
  rows_.resize(count);
  evaluators_.resize(count);
  row_arrays_.resize(count);
  tiles_.resize(count);
  arrays_.resize(count);
  offsets_.resize(count);
  const Evaluator::Inputs arrays(count);
  for (std::size_t n = 0; n < count; ++n) {
    for (const activation::Program& program : function.inputs()[n].indices) {
      evaluators_[n].emplace_back(program, arrays);
    }
  }
}

template <class Compute>
void TileInputs<Compute>::fill(const ScoreTile& tile, bool keeps_offsets) {
  if (arrays_.empty()) return;
  keeps_offsets_ = keeps_offsets;
  columns_ = tile.keys.size();
  const auto columns = static_cast<std::size_t>(columns_);
  const auto elements = static_cast<std::size_t>(tile.queries.size()) * columns;
  index_.resize(columns);
  for (std::size_t n = 0; n < rows_.size(); ++n) {
    rows_[n].resize(columns);
    row_arrays_[n] = rows_[n].data();
    tiles_[n].resize(elements);
    arrays_[n] = tiles_[n].data();
    const Input& input = function_.inputs()[n];
    const bool is_wanted = input.kind == Input::Kind::read && params_.grad_parameters[input.tensor].data != nullptr;
    offsets_[n].resize(keeps_offsets && is_wanted ? elements : 0);
  }
  for (row_ = 0; row_ < tile.queries.size(); ++row_) fill_row(tile, tile.queries.begin + row_);
}

template <class Compute>
void TileInputs<Compute>::fill_row(const ScoreTile& tile, int64_t query) {
  const std::vector<Input>& inputs = function_.inputs();
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    std::vector<double>& row = rows_[n];
    const auto all = [&](int64_t number) { std::fill(row.begin(), row.end(), static_cast<double>(number)); };
    if (inputs[n].kind == Input::Kind::number) {
      std::fill(row.begin(), row.end(), number_of_head(params_.parameters[inputs[n].tensor], tile.head));
    } else if (inputs[n].kind == Input::Kind::read) {
      fill_read(n, tile);
    } else {
      switch (inputs[n].index) {
        case Index::batch:
          all(tile.b);
          break;
        case Index::head:
          all(tile.head);
          break;
        case Index::query:
          all(query);
          break;
        case Index::key:
          std::iota(row.begin(), row.end(), static_cast<double>(tile.keys.begin));
          break;
        case Index::length_q:
          all(params_.queries.size(tile.b));
          break;
        case Index::length_k:
          all(params_.keys.size(tile.b));
          break;
      }
    }
    std::transform(row.begin(), row.end(), tiles_[n].begin() + row_ * columns_,
                   [](double number) { return static_cast<Compute>(number); });
  }
}

template <class Compute>
void TileInputs<Compute>::fill_read(std::size_t input, const ScoreTile& tile) {
  const Input& read = function_.inputs()[input];
  const BoundTensor& tensor = params_.parameters[read.tensor];
  const BoundTensor& gradient = params_.grad_parameters[read.tensor];
  const bool keeps_offsets = !offsets_[input].empty();
  offset_.assign(static_cast<std::size_t>(columns_), 0);
  if (keeps_offsets) grad_offset_.assign(static_cast<std::size_t>(columns_), 0);
  const auto number = static_cast<std::size_t>(
      std::count_if(function_.inputs().begin(), function_.inputs().begin() + static_cast<std::ptrdiff_t>(input),
                    [](const Input& before) { return before.kind == Input::Kind::read; }));
  for (std::size_t a = 0; a < read.indices.size(); ++a) {
    const std::optional<Index> bare = activation::bare_index(read.indices[a], function_.inputs());
    const activation::Program& program = read.indices[a];
    const double* index = index_.data();
    if (bare) {
      index = rows_[static_cast<std::size_t>(program.steps[program.results[0]].number)].data();
    } else {
      double* const result = index_.data();
      evaluators_[input][a].evaluate(rows_[input].data(), columns_, std::span<double* const>(&result, 1),
                                     row_arrays_.data());
    }
    const bool is_token = (params_.token_axes >> (number * activation::most_axes + a) & 1U) != 0;
    const Sequences& side = bare == Index::query ? params_.queries : params_.keys;
    const auto first = is_token ? static_cast<double>(side.first_token(tile.b)) : 0.0;
    const int axis = static_cast<int>(a);
    add_axis(tensor, axis, index, first, tensor.strides[a], offset_);
    if (keeps_offsets) add_axis(tensor, axis, index, first, gradient.strides[a], grad_offset_);
  }
  gather(tensor, offset_, rows_[input]);
  if (keeps_offsets) {
    std::copy(grad_offset_.begin(), grad_offset_.end(), offsets_[input].begin() + row_ * columns_);
  }
}

template class TileInputs<float>;
template class TileInputs<double>;

}  // namespace gdpa::cpu
