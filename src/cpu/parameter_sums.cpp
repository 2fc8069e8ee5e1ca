// See parameter_sums.h.
#include "cpu/parameter_sums.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace gdpa::cpu {
namespace {

using activation::Input;
using activation::Program;

/// A tensor with at most this many elements has several copies of its sums. They stay in the first-level cache.
constexpr int64_t elements_of_copies = 1024;
constexpr int64_t most_copies = 4;

int64_t elements_of(const BoundTensor& tensor) {
  return std::accumulate(tensor.sizes, tensor.sizes + tensor.rank, int64_t{1}, std::multiplies<>());
}

Params with_dense_gradients(Params params) {
  for (BoundTensor& gradient : params.grad_parameters) {
    int64_t stride = 1;
    for (int axis = gradient.rank; axis-- > 0; stride *= gradient.sizes[axis]) gradient.strides[axis] = stride;
  }
  return params;
}

bool is_zero(const Program& program, std::uint16_t step) {
  return program.steps[step].operation == activation::Operation::constant && program.steps[step].number == 0;
}

/// The terms of a head. `differentiated` are the inputs whose gradients are wanted.
ParameterSums::Head head_of(const activation::Function& function, const std::vector<std::size_t>& differentiated,
                            const Params& params, int64_t head) {
  Program program = function.of_head(head).derivatives(differentiated, true);
  const std::vector<std::uint16_t> all = std::exchange(program.results, {program.results[0], program.results[1]});
  std::vector<ParameterSums::Term> terms;
  for (std::size_t k = 0; k < differentiated.size(); ++k) {
    const std::uint16_t step = all[k + 2];
    if (is_zero(program, step)) continue;
    const auto known = std::find(program.results.begin() + 1, program.results.end(), step);
    const auto result = static_cast<std::size_t>(known - program.results.begin());
    if (known == program.results.end()) program.results.push_back(step);
    terms.push_back({differentiated[k], function.inputs()[differentiated[k]].tensor, result});
  }
  return {Evaluator(program, inputs_of_head(function, params.parameters, head)), program.results.size(),
          std::move(terms)};
}

}  // namespace

ParameterSums::ParameterSums(const activation::Function& function, const Params& params, int64_t groups)
    : params_(with_dense_gradients(params)), groups_(groups) {
  std::vector<std::size_t> differentiated;
  for (std::size_t n = 0; n < function.inputs().size(); ++n) {
    const Input& input = function.inputs()[n];
    const bool is_wanted = input.kind != Input::Kind::index && params.grad_parameters[input.tensor].data != nullptr;
    if (is_wanted) differentiated.push_back(n);
  }
  int64_t elements = 0;
  bool is_any_wanted = false;
  for (std::size_t i = 0; i < most_parameters; ++i) {
    if (params_.grad_parameters[i].data == nullptr) continue;
    is_any_wanted = true;
    const int64_t of_tensor = elements_of(params_.grad_parameters[i]);
    first_[i] = elements;
    copies_[i] = of_tensor <= elements_of_copies ? most_copies : 1;
    elements += groups_ * copies_[i] * of_tensor;
  }
  if (!is_any_wanted) return;
  sums_.resize(static_cast<std::size_t>(elements));
  for (int64_t head = 0; head < params.heads_q; ++head) {
    heads_.push_back(head_of(function, differentiated, params_, head));
  }
}

int64_t ParameterSums::group_count(const Params& params, int threads, std::size_t units) {
  constexpr int64_t most_bytes = int64_t{1} << 30;
  int64_t bytes = 0;
  for (const BoundTensor& gradient : params.grad_parameters) {
    if (gradient.data != nullptr) bytes += elements_of(gradient) * static_cast<int64_t>(sizeof(double));
  }
  const int64_t fitting = most_bytes / std::max<int64_t>(1, bytes);
  return std::max<int64_t>(1, std::min({int64_t{threads}, static_cast<int64_t>(units), fitting}));
}

SumCopies ParameterSums::of(int64_t group, std::size_t tensor) {
  const int64_t elements = elements_of(params_.grad_parameters[tensor]);
  double* const first = sums_.data() + first_[tensor] + group * copies_[tensor] * elements;
  return {first, elements, copies_[tensor]};
}

void ParameterSums::store(const Params& params) const {
  for (std::size_t i = 0; i < most_parameters; ++i) {
    const BoundTensor& gradient = params.grad_parameters[i];
    if (gradient.data == nullptr) continue;
    const int last = gradient.rank - 1;
    const int64_t row = last < 0 ? 1 : gradient.sizes[last], stride = last < 0 ? 0 : gradient.strides[last];
    const int64_t count = elements_of(gradient);
    std::vector<double> total(static_cast<std::size_t>(row));
    for (int64_t begin = 0; begin < count; begin += row) {
      std::fill(total.begin(), total.end(), 0.0);
      for (int64_t copy = 0; copy < groups_ * copies_[i]; ++copy) {
        const double* const sums = sums_.data() + first_[i] + copy * count + begin;
        for (int64_t k = 0; k < row; ++k) total[static_cast<std::size_t>(k)] += sums[k];
      }
      int64_t offset = 0, rest = begin / row;
      for (int axis = last; axis-- > 0; rest /= gradient.sizes[axis]) {
        offset += rest % gradient.sizes[axis] * gradient.strides[axis];
      }
      for (int64_t k = 0; k < row; ++k) {
        const double sum = total[static_cast<std::size_t>(k)];
        if (gradient.type == NumberType::float64) {
          static_cast<double*>(gradient.data)[offset + k * stride] = sum;
        } else {
          static_cast<float*>(gradient.data)[offset + k * stride] = static_cast<float>(sum);
        }
      }
    }
  }
}

}  // namespace gdpa::cpu
