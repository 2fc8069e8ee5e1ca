// See inputs.h.
#include "cpu/inputs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>

#include "cpu/convert.h"
#include "definition/environment.h"
#include "fmt/format.h"

namespace gdpa::cpu {
namespace {

using activation::Index;
using activation::Operation;
using activation::Program;
using Kind = activation::Input::Kind;
using activation::Dependence;

/// Calls body with an element of the type of a tensor.
template <class Body>
void with_type(NumberType type, const Body& body) {
  switch (type) {
    case NumberType::float32:
      return body(float{});
    case NumberType::float64:
      return body(double{});
    case NumberType::bfloat16:
      return body(BFloat16{});
    case NumberType::float16:
      return body(Float16{});
    case NumberType::int32:
      return body(int32_t{});
    case NumberType::int64:
      return body(int64_t{});
  }
}

/// Converts elements to numbers, where at(k) is the offset of element k. The conversion of 16-bit types is the
/// conversion of the operands.
template <class T, class Number, class At>
void convert(const T* data, int64_t count, const At& at, Number* numbers) {
  if constexpr (std::is_arithmetic_v<T>) {
    for (int64_t k = 0; k < count; ++k) numbers[k] = static_cast<Number>(data[at(k)]);
  } else {
    constexpr int64_t most = 64;
    std::array<T, most> elements;
    std::array<float, most> converted;
    for (int64_t begin = 0; begin < count; begin += most) {
      const int64_t part = std::min(most, count - begin);
      for (int64_t k = 0; k < part; ++k) elements[static_cast<std::size_t>(k)] = data[at(begin + k)];
      conversions<T>().pack({elements.data(), part}, 1, part, 1, {converted.data(), part});
      std::transform(converted.begin(), converted.begin() + part, numbers + begin,
                     [](float number) { return static_cast<Number>(number); });
    }
  }
}

/// Converts the elements of a tensor whose offsets at(k) gives.
template <class Number, class At>
void gather(const BoundTensor& tensor, int64_t count, const At& at, Number* numbers) {
  with_type(tensor.type,
            [&](auto element) { convert(static_cast<const decltype(element)*>(tensor.data), count, at, numbers); });
}

double number_of_head(const BoundTensor& tensor, int64_t head) {
  double number = 0;
  gather(
      tensor, 1, [&](int64_t) { return tensor.offset_of_head(head); }, &number);
  return number;
}

/// Adds the nearest indices of an axis that exist, times a stride, to offsets. An index that is not a number is 0. The
/// loop is in fp64, which is exact for offsets of all tensors and which vector instructions compute.
void add_axis(double last, const double* index, double first, int64_t stride, std::span<double> offsets) {
  const auto step = static_cast<double>(stride);
  for (std::size_t k = 0; k < offsets.size(); ++k) {
    offsets[k] += std::max(0.0, std::min(index[k] + first, last)) * step;
  }
}

constexpr double infinity = std::numeric_limits<double>::infinity();

template <class To>
To as(double number) {
  return static_cast<To>(number);
}

double last_of(const BoundTensor& tensor, std::size_t axis) { return static_cast<double>(tensor.sizes[axis] - 1); }

bool reads(const Program& program, std::size_t input) {
  return std::any_of(program.steps.begin(), program.steps.end(), [&](const activation::Step& step) {
    return step.operation == Operation::input && static_cast<std::size_t>(step.number) == input;
  });
}

}  // namespace

Evaluator::Inputs inputs_of_head(const activation::Function& function, const BoundTensors& tensors, int64_t head) {
  Evaluator::Inputs numbers;
  for (const activation::Input& input : function.inputs()) {
    if (input.kind == Kind::number) {
      numbers.emplace_back(number_of_head(tensors[input.tensor], head));
    } else if (input.kind == Kind::index && input.index == Index::head) {
      numbers.emplace_back(static_cast<double>(head));
    } else {
      numbers.emplace_back(std::nullopt);
    }
  }
  return numbers;
}

bool HeadEvaluators::depends_on_head(const activation::Function& function) {
  const std::vector<activation::Input>& inputs = function.inputs();
  return std::any_of(inputs.begin(), inputs.end(), [](const activation::Input& input) {
    return input.kind == Kind::number || (input.kind == Kind::index && input.index == Index::head);
  });
}

InputPlan::InputPlan(const activation::Function& function) : function_(function) {
  if (function.is_same_in_head()) return;
  const std::vector<activation::Input>& inputs = function.inputs();
  const Evaluator::Inputs arrays(inputs.size());
  inputs_.resize(inputs.size());
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    Input& input = inputs_[n];
    input.is_read_by_score = reads(function.value_and_derivative(), n) || reads(function.value(), n);
    int key_axes = 0;
    for (std::size_t a = 0; a < inputs[n].indices.size(); ++a) {
      const Program& program = inputs[n].indices[a];
      Axis axis;
      axis.bare = activation::bare_index(program, inputs);
      axis.has_rows = activation::is_row_axis(inputs[n], a);
      axis.depends_on_key = activation::reads_index(program, inputs, Index::key);
      if (axis.bare) {
        axis.input = static_cast<std::size_t>(program.steps[program.results[0]].number);
      } else {
        axis.evaluator.emplace(program, arrays);
      }
      for (std::size_t m = 0; m < n; ++m) {
        if (!axis.bare && reads(program, m)) inputs_[m].is_read_by_index = true;
      }
      if (axis.depends_on_key) {
        ++key_axes;
        input.run_axis = key_axes == 1 && axis.bare ? static_cast<int>(a) : -1;
      }
      input.axes.push_back(std::move(axis));
    }
    input.pattern = activation::dependence_of(inputs[n], inputs);
  }
  checks_indices_ = gdpa::checks_indices();
  for (std::size_t n = 0; n < inputs_.size(); ++n) {
    // The numbers of a diagonal are not in the order of the keys.
    const bool is_nested_diagonal = inputs_[n].pattern == Dependence::difference && inputs_[n].is_read_by_index;
    if (is_nested_diagonal || (checks_indices_ && inputs[n].kind == Kind::read)) inputs_[n].pattern = Dependence::both;
  }
}

template <class Compute>
TileInputs<Compute>::TileInputs(const InputPlan& plan, const Params& params, const BoundTensors& tensors, Keeps keeps)
    : plan_(plan), params_(params), tensors_(tensors), keeps_(std::move(keeps)) {
  const std::size_t count = plan.inputs().size();
  lines_.resize(count);
  row_arrays_.resize(count);
  tiles_.resize(count);
  arrays_.resize(count);
}

template <class Compute>
void TileInputs<Compute>::begin(const ScoreTile& tile, bool fills_tiles, bool keeps_offsets) {
  tile_ = tile;
  fills_tiles_ = fills_tiles;
  keeps_offsets_ = keeps_offsets;
  rows_ = tile.queries.size();
  columns_ = tile.keys.size();
  if (plan_.is_empty()) return;
  const auto widest = static_cast<std::size_t>(columns_ + rows_ - 1);
  index_.resize(widest);
  for (std::size_t n = 0; n < lines_.size(); ++n) {
    lines_[n].numbers.resize(widest);
    row_arrays_[n] = lines_[n].numbers.data();
  }
}

template <class Compute>
void TileInputs<Compute>::fill(const ScoreTile& tile, bool keeps_offsets) {
  begin(tile, true, keeps_offsets);
  if (plan_.is_empty()) return;
  for (std::size_t n = 0; n < tiles_.size(); ++n) {
    if (plan_.inputs()[n].is_read_by_score) tiles_[n].resize(static_cast<std::size_t>(rows_ * columns_));
    arrays_[n] = tiles_[n].data();
  }
  for_each_fill([&](std::size_t n, int64_t row) { fill_input(n, row); });
}

/// Calls body(input, row): first once for each input without rows, then for each row and each input with rows. Without
/// tiles, it omits inputs that depend on both positions.
template <class Compute>
template <class Body>
void TileInputs<Compute>::for_each_fill(const Body& body) {
  const std::vector<activation::Input>& inputs = plan_.function().inputs();
  const auto has_rows = [&](std::size_t n) {
    const Dependence pattern = plan_.inputs()[n].pattern;
    return pattern == Dependence::query || (pattern == Dependence::both && fills_tiles_);
  };
  bool varies = false;
  // In a diagonal, i is the last query and j goes on beyond the last key: row r of the tile begins rows - 1 - r later.
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    const Dependence pattern = plan_.inputs()[n].pattern;
    if (pattern == Dependence::query && inputs[n].kind == Kind::index) fill_index(n, rows_ - 1);
    if (pattern != Dependence::query && pattern != Dependence::both) body(n, 0);
    varies = varies || has_rows(n);
  }
  for (int64_t row = 0; varies && row < rows_; ++row) {
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      if (has_rows(n)) body(n, row);
    }
  }
}

template <class Compute>
void TileInputs<Compute>::enclose(const ScoreTile& tile, std::vector<activation::Interval<double>>& intervals) {
  using Interval = activation::Interval<double>;
  const std::vector<activation::Input>& inputs = plan_.function().inputs();
  intervals.assign(inputs.size(), Interval::whole());
  begin(tile, false, false);
  if (plan_.is_empty()) {  // the inputs are numbers and the head
    for (std::size_t n = 0; n < inputs.size(); ++n) intervals[n] = Interval::point(number_of(inputs[n], 0));
    return;
  }
  const auto interval_of = [](Range range) {
    return Interval{static_cast<double>(range.begin), static_cast<double>(range.end - 1), false};
  };
  for_each_fill([&](std::size_t n, int64_t row) {
    fill_input(n, row);
    const Dependence pattern = plan_.inputs()[n].pattern;
    Interval& interval = intervals[n];
    if (inputs[n].kind != Kind::read) {
      interval = pattern == Dependence::query ? interval_of(tile.queries)
                 : pattern == Dependence::key ? interval_of(tile.keys)
                                              : Interval::point(lines_[n].numbers[0]);
      return;
    }
    const bool is_first = pattern != Dependence::query || row == 0;
    if (is_first) interval = {infinity, -infinity, false};
    for (const Compute value : line_) {
      const auto number = static_cast<double>(value);
      interval.low = number < interval.low ? number : interval.low;
      interval.high = number > interval.high ? number : interval.high;
      interval.may_be_nan = interval.may_be_nan || std::isnan(number);
    }
  });
  for (Interval& interval : intervals) {
    if (interval.low > interval.high) interval = Interval::whole();  // only NaN
  }
}

/// Fills an input for one row of the tile, or for the tile if its pattern has no rows.
template <class Compute>
void TileInputs<Compute>::fill_input(std::size_t input, int64_t row) {
  plan_.function().inputs()[input].kind == Kind::read ? fill_read(input, row) : fill_index(input, row);
}

/// The number of a position other than the key, or of a tensor that is read without an index.
template <class Compute>
double TileInputs<Compute>::number_of(const activation::Input& input, int64_t row) const {
  if (input.kind == Kind::number) return number_of_head(tensors_[input.tensor], tile_.head);
  switch (input.index) {
    case Index::batch:
      return static_cast<double>(tile_.b);
    case Index::head:
      return static_cast<double>(tile_.head);
    case Index::query:
      return static_cast<double>(tile_.queries.begin + row);
    case Index::length_q:
      return static_cast<double>(params_.queries.size(tile_.b));
    case Index::length_k:
      return static_cast<double>(params_.keys.size(tile_.b));
    case Index::first_row_q:
      return static_cast<double>(params_.queries.first_row(tile_.b));
    case Index::first_row_k:
      return static_cast<double>(params_.keys.first_row(tile_.b));
    case Index::key:
      break;
  }
  return 0;
}

/// Fills a position, or a number of a tensor that is read without an index.
template <class Compute>
void TileInputs<Compute>::fill_index(std::size_t input, int64_t row) {
  const InputPlan::Input& plan = plan_.inputs()[input];
  std::vector<double>& numbers = lines_[input].numbers;
  if (plan.pattern == Dependence::key) {
    std::iota(numbers.begin(), numbers.end(), static_cast<double>(tile_.keys.begin));
  } else {
    const double number = number_of(plan_.function().inputs()[input], row);
    std::fill_n(numbers.begin(), plan.is_read_by_index ? numbers.size() : 1, number);
  }
  if (!plan.is_read_by_score || !fills_tiles_) return;
  line_.resize(static_cast<std::size_t>(line_size(plan.pattern)));
  std::transform(numbers.begin(), numbers.begin() + line_size(plan.pattern), line_.begin(), as<Compute>);
  spread(input, row);
}

/// Fills a read. line_ has its elements unless they are a row of the tile.
template <class Compute>
void TileInputs<Compute>::fill_read(std::size_t input, int64_t row) {
  const InputPlan::Input& plan = plan_.inputs()[input];
  const int64_t count = line_size(plan.pattern);
  const bool is_in_tile = plan.is_read_by_score && fills_tiles_;
  if (is_in_tile && plan.pattern == Dependence::both) {
    read_line(input, row, count, tiles_[input].data() + row * columns_);
    return;
  }
  line_.resize(static_cast<std::size_t>(count));
  read_line(input, row, count, line_.data());
  std::vector<double>& numbers = lines_[input].numbers;
  const bool is_one_number = plan.pattern == Dependence::query || plan.pattern == Dependence::none;
  if (is_one_number && plan.is_read_by_index) std::fill(numbers.begin(), numbers.end(), numbers[0]);
  if (is_in_tile) spread(input, row);
}

/// The elements of the input for one row of the tile, or for the tile if its pattern has no rows.
template <class Compute>
int64_t TileInputs<Compute>::line_size(Dependence pattern) const {
  if (pattern == Dependence::difference) return columns_ + rows_ - 1;
  return pattern == Dependence::key || pattern == Dependence::both ? columns_ : 1;
}

/// Writes the line to the rows of the tile that have its numbers.
template <class Compute>
void TileInputs<Compute>::spread(std::size_t input, int64_t row) {
  const Dependence pattern = plan_.inputs()[input].pattern;
  const bool is_of_row = pattern == Dependence::query;
  for (int64_t r = is_of_row ? row : 0; r < (is_of_row ? row + 1 : rows_); ++r) {
    Compute* const values = tiles_[input].data() + r * columns_;
    if (line_size(pattern) == 1) {
      std::fill_n(values, columns_, line_[0]);
    } else {
      std::copy_n(line_.data() + (pattern == Dependence::difference ? rows_ - 1 - r : 0), columns_, values);
    }
  }
}

/// Returns the index of an axis that does not depend on the key.
template <class Compute>
double TileInputs<Compute>::index_at(const Axis& axis, int64_t row) {
  if (axis.bare) {
    return *axis.bare == Index::query ? static_cast<double>(tile_.queries.begin + row) : lines_[axis.input].numbers[0];
  }
  return *index_of(axis, 1);
}

/// Returns the index of an axis at consecutive keys.
template <class Compute>
const double* TileInputs<Compute>::index_of(const Axis& axis, int64_t count) {
  if (axis.bare) return lines_[axis.input].numbers.data();
  double* const result = index_.data();
  axis.evaluator->evaluate(result, count, std::span<double* const>(&result, 1), row_arrays_.data());
  return result;
}

/// Returns the first row of the sequence in an axis of the rows, and 0 in another axis.
template <class Compute>
double TileInputs<Compute>::first_of(const Axis& axis) const {
  if (!axis.has_rows) return 0.0;
  const Sequences& side = *axis.bare == Index::query ? params_.queries : params_.keys;
  return static_cast<double>(side.first_row(tile_.b));
}

/// Reports an index of a score of this row, at(k) for key k, that does not exist.
template <class Compute>
template <class At>
void TileInputs<Compute>::check(std::size_t input, std::size_t axis, int64_t row, int64_t count, const At& at) const {
  if (!plan_.checks_indices()) return;
  const int64_t size = tensors_[plan_.function().inputs()[input].tensor].sizes[axis];
  if (size == 1) return;  // broadcast
  const int64_t query = tile_.queries.begin + row;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t key = tile_.keys.begin + k;
    if (keeps_ && !keeps_(query, key)) continue;
    const double index = at(k);
    if (index >= 0 && index < static_cast<double>(size)) continue;
    if (plan_.has_reported()) return;
    fmt::print(stderr,
               "gdpa: index {} of {} is {} at batch = {}, head = {}, q_idx = {}, kv_idx = {}, expected 0 to {}\n", axis,
               plan_.function().parameters()[plan_.function().inputs()[input].tensor], static_cast<int64_t>(index),
               tile_.b, tile_.head, query, key, size - 1);
    return;
  }
}

/// Reads the elements for `count` keys from the first one on.
template <class Compute>
void TileInputs<Compute>::read_line(std::size_t input, int64_t row, int64_t count, Compute* values) {
  const InputPlan::Input& plan = plan_.inputs()[input];
  const std::size_t tensor_index = plan_.function().inputs()[input].tensor;
  const BoundTensor& tensor = tensors_[tensor_index];
  const BoundTensor& gradient = params_.grad_parameters[tensor_index];
  const bool keeps = keeps_offsets_ && gradient.data != nullptr;
  // Adds an index to places in the tensor, and to places in the sums of its gradient, which may have other strides.
  const auto add_index = [&](std::size_t a, const double* index, std::span<double> place,
                             std::span<double> grad_place) {
    add_axis(last_of(tensor, a), index, first_of(plan.axes[a]), tensor.strides[a], place);
    if (keeps) add_axis(last_of(tensor, a), index, first_of(plan.axes[a]), gradient.strides[a], grad_place);
  };
  // The axes that do not depend on the key come first.
  double first_place = 0, first_grad_place = 0;
  for (std::size_t a = 0; a < plan.axes.size(); ++a) {
    const Axis& axis = plan.axes[a];
    if (axis.depends_on_key) continue;
    const double index = index_at(axis, row);
    check(input, a, row, count, [&](int64_t) { return index + first_of(axis); });
    add_index(a, &index, {&first_place, 1}, {&first_grad_place, 1});
  }
  const auto write = [&](const auto& at) {
    if (!plan.is_read_by_index) return gather(tensor, count, at, values);
    std::vector<double>& numbers = lines_[input].numbers;
    gather(tensor, count, at, numbers.data());
    std::transform(numbers.begin(), numbers.begin() + count, values, as<Compute>);
  };
  if (plan.run_axis >= 0) {
    const auto a = static_cast<std::size_t>(plan.run_axis);
    const int64_t last = tensor.sizes[a] - 1, stride = tensor.strides[a];
    const int64_t first = tile_.keys.begin + static_cast<int64_t>(first_of(plan.axes[a]));
    const auto start = static_cast<int64_t>(first_place);
    check(input, a, row, count, [=](int64_t k) { return static_cast<double>(first + k); });
    if (first + count - 1 <= last && stride == 1) {
      write([start = start + first](int64_t k) { return start + k; });
    } else {
      write([=](int64_t k) { return start + std::min(first + k, last) * stride; });
    }
    if (keeps) {
      std::vector<int64_t>& starts = lines_[input].starts;
      starts.resize(static_cast<std::size_t>(rows_));
      starts[static_cast<std::size_t>(row)] = static_cast<int64_t>(first_grad_place);
    }
    return;
  }
  place_.assign(static_cast<std::size_t>(count), first_place);
  grad_place_.assign(static_cast<std::size_t>(count), first_grad_place);
  for (std::size_t a = 0; a < plan.axes.size(); ++a) {
    const Axis& axis = plan.axes[a];
    if (!axis.depends_on_key) continue;
    const double* const index = index_of(axis, count);
    check(input, a, row, count, [&](int64_t k) { return index[k] + first_of(axis); });
    add_index(a, index, place_, grad_place_);
  }
  offset_.resize(static_cast<std::size_t>(count));
  std::transform(place_.begin(), place_.end(), offset_.begin(), as<int64_t>);
  write([this](int64_t k) { return offset_[static_cast<std::size_t>(k)]; });
  if (!keeps) return;
  std::vector<int64_t>& offsets = lines_[input].offsets;
  const bool has_rows = plan.pattern == Dependence::both || plan.pattern == Dependence::query;
  offsets.resize(static_cast<std::size_t>((has_rows ? rows_ : 1) * count));
  std::transform(grad_place_.begin(), grad_place_.end(), offsets.begin() + (has_rows ? row * count : 0), as<int64_t>);
}

/// Adds the gradients of one row of a read with a run axis.
template <class Compute>
void TileInputs<Compute>::add_run(std::size_t input, int64_t row, const Compute* terms, double* sums) const {
  const InputPlan::Input& plan = plan_.inputs()[input];
  const auto a = static_cast<std::size_t>(plan.run_axis);
  const BoundTensor& gradient = params_.grad_parameters[plan_.function().inputs()[input].tensor];
  const int64_t last = gradient.sizes[a] - 1, stride = gradient.strides[a];
  const int64_t first = tile_.keys.begin + static_cast<int64_t>(first_of(plan.axes[a]));
  const std::vector<int64_t>& starts = lines_[input].starts;
  double* const line = sums + (plan.pattern == Dependence::both ? starts[static_cast<std::size_t>(row)] : starts[0]);
  if (first + columns_ - 1 <= last && stride == 1) {
    for (int64_t k = 0; k < columns_; ++k) line[first + k] += static_cast<double>(terms[k]);
  } else {
    for (int64_t k = 0; k < columns_; ++k) {
      line[std::min(first + k, last) * stride] += static_cast<double>(terms[k]);
    }
  }
}

template <class Compute>
void TileInputs<Compute>::add_gradient(std::size_t input, const Compute* terms, const SumCopies& to) {
  double* const sums = to.first;
  const activation::Input& of_function = plan_.function().inputs()[input];
  if (of_function.kind == Kind::number) {
    const int64_t offset = params_.grad_parameters[of_function.tensor].offset_of_head(tile_.head);
    sums[offset] += std::accumulate(terms, terms + rows_ * columns_, 0.0);
    return;
  }
  const Dependence pattern = plan_.inputs()[input].pattern;
  if (plan_.inputs()[input].run_axis >= 0) {
    for (int64_t row = 0; row < rows_; ++row) add_run(input, row, terms + row * columns_, sums);
    return;
  }
  const std::vector<int64_t>& offsets = lines_[input].offsets;
  if (pattern == Dependence::both) {
    for (std::size_t k = 0; k < offsets.size(); ++k) {
      const int64_t copy = static_cast<int64_t>(k) & (to.copies - 1);
      sums[copy * to.elements + offsets[k]] += static_cast<double>(terms[k]);
    }
    return;
  }
  // The sums of the terms of each element first.
  sums_.assign(offsets.size(), 0.0);
  for (int64_t row = 0; row < rows_; ++row, terms += columns_) {
    if (line_size(pattern) == 1) {
      double& sum = sums_[pattern == Dependence::query ? static_cast<std::size_t>(row) : 0];
      sum = std::accumulate(terms, terms + columns_, sum);
      continue;
    }
    double* const line = sums_.data() + (pattern == Dependence::difference ? rows_ - 1 - row : 0);
    for (int64_t column = 0; column < columns_; ++column) line[column] += static_cast<double>(terms[column]);
  }
  for (std::size_t k = 0; k < offsets.size(); ++k) sums[offsets[k]] += sums_[k];
}

template class TileInputs<float>;
template class TileInputs<double>;

}  // namespace gdpa::cpu
