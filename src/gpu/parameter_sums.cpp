// See parameter_sums.h.
#include "gpu/parameter_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "codegen/gradients.h"
#include "gpu/families/family.h"
#include "gpu/kernels/complete_terms.h"
#include "gpu/kernels/round_parameters.h"
#include "gpu/plan.h"
#include "gpu/thresholds.h"
#include "gpu/workspace.h"

namespace gdpa::gpu {
namespace {

bool is_contiguous(const BoundTensor& tensor) {
  int64_t stride = 1;
  for (int axis = tensor.rank; axis-- > 0; stride *= tensor.sizes[axis]) {
    if (tensor.sizes[axis] > 1 && tensor.strides[axis] != stride) return false;
  }
  return true;
}

/// Calls body(tensor) for each tensor whose gradient is wanted.
template <class Body>
void for_each_wanted(const Problem& problem, const Body& body) {
  for (std::size_t i = 0; i < most_parameters; ++i) {
    if ((problem.wanted.parameters >> i & 1U) != 0) body(i);
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

/// A sum in the device code (common/parameter_sum.cuh), and its bytes. The elements of all wanted tensors before are in
/// front of the sums of a tensor. If backward stores terms, elements with several terms have fp32 sums.
struct SumType {
  std::string_view name;
  int64_t bytes;
};
constexpr SumType type_of(ParameterSum sum) {
  constexpr SumType types[] = {{"gdpa::FloatSum", 4},
                               {"gdpa::DoubleSum", 8},
                               {"gdpa::ExactSum", 13 * 8},
                               {"gdpa::FloatSum", 2},
                               {"gdpa::FloatSum", 2}};
  return types[static_cast<std::size_t>(sum)];
}

/// The type of a term that backward stores in a gradient, if it stores terms. The call then wants one gradient, of 16
/// bits. Each element has one term, apart from the last elements of the axes. Pairs of adjacent keys begin at multiples
/// of 4 bytes.
std::optional<ParameterSum> stored_term_for(const Call& call, unsigned in_backward) {
  const unsigned wanted = call.problem.wanted.parameters;
  if (wanted != in_backward || std::popcount(wanted) != 1 || !has_own_elements(call)) return std::nullopt;
  const auto tensor = static_cast<std::size_t>(std::countr_zero(wanted));
  using activation::Index;
  constexpr std::array order = {Index::batch, Index::head, Index::query, Index::key};
  const std::vector<activation::Input>& inputs = call.expressions.function.inputs();
  const bool is_in_order = std::ranges::all_of(inputs, [&](const activation::Input& input) {
    if (input.kind != activation::Input::Kind::read || input.tensor != tensor) return true;
    return input.row_axes == 0 &&
           std::ranges::equal(input.indices, order, [&](const activation::Program& index, Index position) {
             return activation::bare_index(index, inputs) == position;
           });
  });
  if (!is_in_order) return std::nullopt;
  const BoundTensor& gradient = call.params.grad_parameters[tensor];
  const bool has_pairs = gradient.sizes[3] % 2 == 0 && reinterpret_cast<std::uintptr_t>(gradient.data) % 4 == 0;
  if (!has_pairs || !is_contiguous(gradient)) return std::nullopt;
  if (gradient.type == NumberType::bfloat16) return ParameterSum::bfloat16_term;
  if (gradient.type == NumberType::float16) return ParameterSum::float16_term;
  return std::nullopt;
}

/// The sums of elements with few terms are fp32. Deterministic mode needs sums that do not depend on the order.
ParameterSum sum_type_of(const Call& call) {
  const Problem& problem = call.problem;
  if (problem.deterministic) return ParameterSum::exact;
  const Side keys = keys_of(problem);
  const int64_t rows = problem.rows_q * (problem.query_form == Form::shared ? std::max<int64_t>(1, problem.batch) : 1);
  const int64_t scores = problem.heads_q * rows * std::max<int64_t>(1, keys.mean_length());
  bool has_few = true;
  for_each_wanted(problem, [&](std::size_t i) {
    const int64_t elements = std::max<int64_t>(1, elements_of(call.params.grad_parameters[i]));
    has_few = has_few && spreads_terms(call.expressions.function, i) &&
              scores / elements <= thresholds::terms_of_float32_sums;
  });
  return has_few ? ParameterSum::float32 : ParameterSum::float64;
}

/// Reserves the sums at the end of the axes, which several terms have.
void plan_stored_terms(const Call& call, GpuPlan& plan, std::vector<Launch>& clears) {
  ParameterSumsPlan& sums = plan.parameters;
  sums.adds_to_gradients = true;
  const BoundTensor& gradient = call.params.grad_parameters[std::countr_zero(call.problem.wanted.parameters)];
  sums.bytes = call.problem.batch * call.problem.heads_q * (gradient.sizes[2] + gradient.sizes[3]) *
               type_of(ParameterSum::float32).bytes;
  sums.offset = plan.workspace.reserve(sums.bytes);
  clears.push_back(Launch::clear(sums.offset, sums.bytes));
  plan.launches.push_back(complete_terms(call, plan));
}

/// Reserves sums, or clears the gradients if these are the sums.
void plan_sums(const Call& call, GpuPlan& plan, std::vector<Launch>& clears) {
  ParameterSumsPlan& sums = plan.parameters;
  bool are_contiguous = true;
  int64_t elements = 0;
  bool are_float32 = true;
  for_each_wanted(call.problem, [&](std::size_t i) {
    const BoundTensor& gradient = call.params.grad_parameters[i];
    are_contiguous = are_contiguous && is_contiguous(gradient);
    are_float32 = are_float32 && gradient.type == NumberType::float32;
    elements += elements_of(gradient);
  });
  sums.adds_to_gradients = are_contiguous && are_float32 && sums.sum == ParameterSum::float32;
  if (sums.adds_to_gradients) {
    return for_each_wanted(call.problem, [&](std::size_t i) {
      clears.push_back(Launch::clear([i](const BoundCall& bound) {
        const BoundTensor& gradient = bound.params.grad_parameters[i];
        return Cleared{gradient.data, elements_of(gradient) * type_of(ParameterSum::float32).bytes};
      }));
    });
  }
  sums.bytes = elements * type_of(sums.sum).bytes;
  if (sums.sum == ParameterSum::float64) sums.copies = copies_of(sums.bytes);
  const int64_t bytes = sums.copies * sums.bytes;
  sums.offset = plan.workspace.reserve(bytes);
  clears.push_back(Launch::clear(sums.offset, bytes));
  plan.launches.push_back(round_parameters(call, sums.sum, elements));
}

}  // namespace

std::string_view in_source(ParameterSum sum) { return type_of(sum).name; }

std::string_view element_of_terms(ParameterSum sum) {
  return sum == ParameterSum::bfloat16_term ? "gdpa::BFloat16" : "gdpa::Float16";
}

void write_parameter_gradients(const ParameterGradientsForm& form, ConfigText& config) {
  config.type("Gradients", "::Gradients");
  config.type("Sum", in_source(form.sum));
}

std::string parameter_gradients_source(const ParameterGradientsForm& form, const activation::Function& function,
                                       int threads_with_sums) {
  return activation::gradients_source(function, form.tensor_types, form.wanted,
                                      {in_source(form.sum), form.accuracy, threads_with_sums});
}

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

bool has_own_elements(const Call& call) {
  const Problem& problem = call.problem;
  const activation::Function& function = call.expressions.function;
  const std::vector<activation::Input>& inputs = function.inputs();
  const unsigned wanted = score_gradients(problem, function);
  return std::any_of(inputs.begin(), inputs.end(), [&](const activation::Input& input) {
    const bool is_wanted = input.kind == activation::Input::Kind::read && (wanted >> input.tensor & 1U) != 0;
    if (!is_wanted || !activation::is_read_by_all_positions(input, inputs)) return false;
    const BoundTensor& tensor = call.params.parameters[input.tensor];
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

ParameterSum parameter_sum_of(const Call& call, unsigned in_backward) {
  const std::optional<ParameterSum> term = stored_term_for(call, in_backward);
  return term ? *term : sum_type_of(call);
}

int64_t elements_of(const BoundTensor& tensor) {
  int64_t count = 1;
  for (int axis = 0; axis < tensor.rank; ++axis) count *= tensor.sizes[axis];
  return count;
}

void plan_parameter_gradients(const Call& call, GpuPlan& plan, std::vector<Launch>& clears) {
  const Problem& problem = call.problem;
  if (problem.direction != Direction::backward || problem.wanted.parameters == 0) return;
  ParameterSumsPlan& sums = plan.parameters;
  if (sums.in_backward == 0) sums.sum = parameter_sum_of(call, 0);
  const unsigned left = problem.wanted.parameters & ~sums.in_backward;
  if (left != 0) {
    const Accuracy accuracy = problem.deterministic ? Accuracy::exact : accuracy_of(problem);
    add_parameter_gradients(call, {problem.tensor_types, left, sums.sum, accuracy}, plan);
  } else {
    plan.reason += "; the same kernel computes the gradients of tensors";
  }
  if (is_term(sums.sum)) {
    plan_stored_terms(call, plan, clears);
  } else {
    plan_sums(call, plan, clears);
  }
  plan.deterministic = plan.deterministic && sums.sum == ParameterSum::exact;
}

void set_parameter_sums(const ParameterSumsPlan& plan, const Problem& problem, std::byte* workspace,
                        CommonArguments& arguments) {
  if (is_term(plan.sum)) arguments.params.parameter_sums = {1, plan.bytes, workspace + plan.offset};
  if (plan.offset < 0 || plan.adds_to_gradients) return;
  arguments.params.parameter_sums = {plan.copies, plan.bytes};
  int64_t offset = plan.offset;
  for_each_wanted(problem, [&](std::size_t i) {
    BoundTensor& gradient = arguments.params.grad_parameters[i];
    gradient.data = workspace + offset;
    offset += elements_of(gradient) * type_of(plan.sum).bytes;
    int64_t stride = 1;
    for (int axis = gradient.rank; axis-- > 0; stride *= gradient.sizes[axis]) gradient.strides[axis] = stride;
  });
}

}  // namespace gdpa::gpu
