// See parameter_plan.h.
#include "families/parameter_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "codegen/cuda_gradients.h"
#include "expression/function.h"
#include "plan/thresholds.h"

namespace gdpa::families {
namespace {

using plan::KernelKind;
using plan::KernelSpec;
using plan::ParameterSum;

bool is_contiguous(const BoundTensor& tensor) {
  int64_t stride = 1;
  for (int axis = tensor.rank; axis-- > 0; stride *= tensor.sizes[axis]) {
    if (tensor.sizes[axis] > 1 && tensor.strides[axis] != stride) return false;
  }
  return true;
}

bool is_wanted(const Problem& problem, std::size_t tensor) { return (problem.wanted.parameters >> tensor & 1U) != 0; }

/// Calls body(gradient) for each wanted gradient.
template <class Body>
void for_each_wanted(const Problem& problem, const Params& params, const Body& body) {
  for (std::size_t i = 0; i < most_parameters; ++i) {
    if (is_wanted(problem, i)) body(params.grad_parameters[i]);
  }
}

/// Whether scores that differ in a position read different elements, apart from positions beyond an axis: every index
/// of the tensor is a position. The terms of a computed index, as in clamp(i - j, 0, 63), may all be of one element.
bool spreads_terms(const activation::Function& function, std::size_t tensor) {
  const std::vector<activation::Input>& inputs = function.inputs();
  return std::all_of(inputs.begin(), inputs.end(), [&](const activation::Input& input) {
    if (input.kind == activation::Input::Kind::index || input.tensor != tensor) return true;
    return std::all_of(input.indices.begin(), input.indices.end(), [&](const activation::Program& index) {
      return activation::bare_index(index, inputs).has_value();
    });
  });
}

/// The copies of fp64 sums with this many bytes. Many scores have the same element where an index is clamped or the
/// tensor is small. The L2 cache then orders the additions of all CTAs to this element.
int copies_of(int64_t bytes) {
  constexpr int64_t most_bytes = int64_t{4} << 20;  // of all copies, which are cleared before and read after backward
  constexpr int most_copies = 32;
  int copies = 1;
  while (copies < most_copies && 2 * copies * bytes <= most_bytes) copies *= 2;
  return copies;
}

}  // namespace

unsigned number_gradients(const Problem& problem, const activation::Function& function) {
  constexpr int most = 3;  // with four, the compiler serialises the products
  const auto is_number = [](const activation::Input& input) { return input.kind == activation::Input::Kind::number; };
  const std::vector<activation::Input>& inputs = function.inputs();
  const bool reads_numbers = std::all_of(inputs.begin(), inputs.end(), is_number);
  if (!reads_numbers || function.functions() > 1 || function.of_sum() != nullptr) return 0;
  return std::popcount(problem.wanted.parameters) <= most ? problem.wanted.parameters : 0;
}

unsigned score_gradients(const Problem& problem, const activation::Function& function) {
  return problem.wanted.parameters &
         activation::tensors_of_score(function, problem.tensor_types, !problem.deterministic);
}

bool has_own_elements(const Problem& problem, const Params& params, const activation::Function& function) {
  const std::vector<activation::Input>& inputs = function.inputs();
  const unsigned wanted = score_gradients(problem, function);
  return std::any_of(inputs.begin(), inputs.end(), [&](const activation::Input& input) {
    const bool is_wanted = input.kind == activation::Input::Kind::read && (wanted >> input.tensor & 1U) != 0;
    if (!is_wanted || !activation::is_read_by_all_positions(input, inputs)) return false;
    const BoundTensor& tensor = params.parameters[input.tensor];
    const auto reads_tensor = [&](const activation::Input& other) {
      return other.kind != activation::Input::Kind::index && other.tensor == input.tensor;
    };
    if (std::ranges::count_if(inputs, reads_tensor) > 1) return false;
    for (std::size_t axis = 0; axis < input.indices.size(); ++axis) {
      const activation::Index index = activation::bare_index(input.indices[axis], inputs).value();
      const int64_t least = index == activation::Index::batch  ? problem.batch
                            : index == activation::Index::head ? problem.heads_q
                                                               : 1;
      if (tensor.sizes[axis] < least) return false;
    }
    return true;
  });
}

/// The type of a term that backward stores in a gradient, if it stores terms. The call then wants one gradient, of 16
/// bits. Each element has one term, apart from the last elements of the axes. Pairs of adjacent keys begin at multiples
/// of 4 bytes.
std::optional<ParameterSum> stored_term_for(const PlanRequest& request, const Params& params,
                                            const activation::Function& function, const plan::GpuPlan& plan) {
  const unsigned wanted = request.problem.wanted.parameters;
  if (!request.own_elements || wanted != plan.parameters_in_steps || std::popcount(wanted) != 1) return std::nullopt;
  const auto tensor = static_cast<std::size_t>(std::countr_zero(wanted));
  using activation::Index;
  constexpr std::array order = {Index::batch, Index::head, Index::query, Index::key};
  const std::vector<activation::Input>& inputs = function.inputs();
  const bool is_in_order = std::ranges::all_of(inputs, [&](const activation::Input& input) {
    if (input.kind != activation::Input::Kind::read || input.tensor != tensor) return true;
    return input.row_axes == 0 &&
           std::ranges::equal(input.indices, order, [&](const activation::Program& index, Index position) {
             return activation::bare_index(index, inputs) == position;
           });
  });
  if (!is_in_order) return std::nullopt;
  const BoundTensor& gradient = params.grad_parameters[tensor];
  const bool has_pairs = gradient.sizes[3] % 2 == 0 && reinterpret_cast<std::uintptr_t>(gradient.data) % 4 == 0;
  if (!has_pairs || !is_contiguous(gradient)) return std::nullopt;
  if (gradient.type == NumberType::bfloat16) return ParameterSum::bfloat16_term;
  if (gradient.type == NumberType::float16) return ParameterSum::float16_term;
  return std::nullopt;
}

/// The sums of elements with few terms are fp32. Deterministic mode needs sums that do not depend on the order.
ParameterSum parameter_sum_for(const Problem& problem, const Params& params, const activation::Function& function) {
  if (problem.deterministic) return ParameterSum::exact;
  const Side keys = keys_of(problem);
  const int64_t rows = problem.rows_q * (problem.query_form == Form::shared ? std::max<int64_t>(1, problem.batch) : 1);
  const int64_t scores = problem.heads_q * rows * std::max<int64_t>(1, keys.mean_length());
  bool has_few = true;
  for (std::size_t i = 0; i < most_parameters; ++i) {
    if (!is_wanted(problem, i)) continue;
    const int64_t elements = std::max<int64_t>(1, elements_of(params.grad_parameters[i]));
    has_few = has_few && spreads_terms(function, i) && scores / elements <= plan::thresholds::terms_of_float32_sums;
  }
  return has_few ? ParameterSum::float32 : ParameterSum::float64;
}

int64_t elements_of(const BoundTensor& tensor) {
  int64_t count = 1;
  for (int axis = 0; axis < tensor.rank; ++axis) count *= tensor.sizes[axis];
  return count;
}

int64_t bytes_of_sum(ParameterSum sum) {
  switch (sum) {
    case ParameterSum::float32:
      return 4;
    case ParameterSum::float64:
      return 8;
    case ParameterSum::exact:
      return 13 * 8;  // common/parameter_sum.cuh
    case ParameterSum::bfloat16_term:
    case ParameterSum::float16_term:
      return 2;
  }
  return 0;
}

plan::KernelSpec parameter_kernel_for(const PlanRequest& request, unsigned wanted, ParameterSum sum) {
  const Problem& problem = request.problem;
  KernelSpec kernel = kernel_for(request, KernelKind::parameter_gradients);
  kernel.wanted_parameters = wanted;
  kernel.tensor_types = problem.tensor_types;
  kernel.mask_types = problem.mask_types;
  kernel.parameter_sum = sum;
  kernel.accuracy = problem.deterministic ? Accuracy::exact : plan::accuracy_of(problem);
  return kernel;
}

void add_parameter_sums(const PlanRequest& request, const Params& params, plan::GpuPlan& plan) {
  const ParameterSum sum = plan.parameter_sum;
  WorkspaceLayout layout(plan.workspace);
  if (plan::is_term(sum)) {
    plan.adds_to_grad_parameters = true;
    const int tensor = std::countr_zero(request.problem.wanted.parameters);
    const BoundTensor& gradient = params.grad_parameters[tensor];
    plan.workspace.parameter_bytes = request.problem.batch * request.problem.heads_q *
                                     (gradient.sizes[2] + gradient.sizes[3]) * bytes_of_sum(ParameterSum::float32);
    plan.workspace.parameters = layout.reserve(plan.workspace.parameter_bytes);
    const auto is_backward = [](const plan::GpuStep& step) { return step.kernel.kind == KernelKind::backward; };
    const KernelSpec& backward = std::ranges::find_if(plan.steps, is_backward)->kernel;  // has stored the terms
    KernelSpec completing;
    completing.kind = KernelKind::complete_terms;
    completing.parameter_sum = sum;
    completing.wanted_parameters = request.problem.wanted.parameters;
    completing.tile_queries = backward.tile_queries;
    completing.tile_keys = backward.tile_keys;
    completing.mask_types = backward.mask_types;
    select_structs(completing, request.problem);
    constexpr int64_t ctas_per_multiprocessor = 8;
    const int64_t tiles =
        gradient.sizes[0] * gradient.sizes[1] * divide_up(gradient.sizes[2], int64_t{completing.tile_queries});
    plan.parameter_steps.push_back(
        {completing, std::min(tiles, ctas_per_multiprocessor * request.gpu.multiprocessors)});
    return;
  }
  bool are_contiguous = true;
  int64_t elements = 0;
  bool are_float32 = true;
  for_each_wanted(request.problem, params, [&](const BoundTensor& gradient) {
    are_contiguous = are_contiguous && is_contiguous(gradient);
    are_float32 = are_float32 && gradient.type == NumberType::float32;
    elements += elements_of(gradient);
  });
  plan.adds_to_grad_parameters = are_contiguous && are_float32 && sum == ParameterSum::float32;
  if (plan.adds_to_grad_parameters) return;
  plan.workspace.parameter_bytes = elements * bytes_of_sum(sum);
  if (sum == ParameterSum::float64) plan.workspace.parameter_copies = copies_of(plan.workspace.parameter_bytes);
  plan.workspace.parameters = layout.reserve(plan.workspace.parameter_copies * plan.workspace.parameter_bytes);
  constexpr int64_t threads = 256, ctas_per_multiprocessor = 16;
  KernelSpec rounding;
  rounding.kind = KernelKind::round_parameters;
  rounding.parameter_sum = sum;
  const int64_t most_ctas = ctas_per_multiprocessor * request.gpu.multiprocessors;
  plan.parameter_steps.push_back({rounding, std::min(divide_up(elements, threads), most_ctas)});
}

}  // namespace gdpa::families
