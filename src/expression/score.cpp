// Evaluates the programs of a function or of a mask at one score in fp64: the indices of each read, then the results.
#include "gdpa/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "expression/function.h"
#include "expression/lower.h"
#include "gdpa/error.h"
#include "gdpa/mask_expression.h"

namespace gdpa {

using activation::Input;

/// The function of a query head. The activation keeps it alive.
struct ScoreDefinition::OfHead {
  Activation activation;
  const activation::Function* function;
  activation::Program program;  ///< {f, f'}, then the derivative by each input
};

namespace {

double position(activation::Index index, const ScorePlace& place) {
  const int64_t positions[] = {place.batch,
                               place.head,
                               place.q_idx,
                               place.kv_idx,
                               place.len_q,
                               place.len_k,
                               place.q_row - place.q_idx,
                               place.kv_row - place.kv_idx};
  return static_cast<double>(positions[static_cast<std::size_t>(index)]);
}

/// An infinite index becomes a position that is beyond every axis.
int64_t to_position(double index) {
  constexpr double beyond = 0x1p62;
  return std::isnan(index) ? 0 : static_cast<int64_t>(std::clamp(index, -beyond, beyond));
}

TensorRead read_at(const Input& input, const std::vector<Input>& inputs, const ScorePlace& place,
                   const std::vector<double>& numbers) {
  TensorRead read{input.tensor, {}};
  for (std::size_t axis = 0; axis < input.indices.size(); ++axis) {
    const activation::Program& program = input.indices[axis];
    if (activation::is_row_axis(input, axis)) {
      const bool is_query = activation::bare_index(program, inputs) == activation::Index::query;
      read.indices.push_back(is_query ? place.q_row : place.kv_row);
    } else {
      read.indices.push_back(to_position(activation::evaluate(program, 0, numbers)[0]));
    }
  }
  return read;
}

/// The numbers of the inputs at a score.
std::vector<double> numbers_at(const std::vector<Input>& inputs, const ScorePlace& place,
                               const std::function<double(const TensorRead&)>& read) {
  std::vector<double> numbers(inputs.size());
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    const bool is_position = inputs[n].kind == Input::Kind::index;
    numbers[n] = is_position ? position(inputs[n].index, place) : read(read_at(inputs[n], inputs, place, numbers));
  }
  return numbers;
}

}  // namespace

ScoreDefinition::ScoreDefinition(const Activation& activation, int64_t heads) {
  const auto functions = static_cast<int64_t>(activation.function().functions());
  if (functions > 1 && functions != heads) {
    throw Error(
        ErrorKind::value,
        fmt::format("activation: expected one function, or {}: one for each query head, got {}", heads, functions));
  }
  auto of_heads = std::make_shared<std::vector<OfHead>>();
  for (int64_t head = 0; head < heads; ++head) {
    const activation::Function& function = activation.function().of_head(head);
    std::vector<std::size_t> inputs(function.inputs().size());
    std::iota(inputs.begin(), inputs.end(), 0);
    of_heads->push_back(
        {activation, &function, inputs.empty() ? function.value_and_derivative() : function.derivatives(inputs, true)});
  }
  heads_ = std::move(of_heads);
}

ScoreDerivatives ScoreDefinition::evaluate(const ScorePlace& place, double score,
                                           const std::function<double(const TensorRead&)>& read) const {
  const OfHead& head = heads_->at(static_cast<std::size_t>(place.head));
  const std::vector<Input>& inputs = head.function->inputs();
  const std::vector<double> numbers = numbers_at(inputs, place, read);
  const std::vector<double> results = activation::evaluate(head.program, score, numbers);
  ScoreDerivatives at{results[0], results[1], {}};
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    if (inputs[n].kind != Input::Kind::index) at.by_read.push_back(results[2 + n]);
  }
  return at;
}

bool MaskExpression::keeps(const ScorePlace& place, const std::function<double(const TensorRead&)>& read) const {
  return activation::evaluate(function_->value(), 0, numbers_at(function_->inputs(), place, read))[0] != 0;
}

}  // namespace gdpa
