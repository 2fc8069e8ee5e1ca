// See check.h.
#include "check.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "errors.h"
#include "reference.h"

namespace gdpa::tool {
namespace {

template <class Element>
struct Named {
  std::string name;
  Element element;
};

/// An output of a call. Its bits are promised to repeat in every plan, or only in a deterministic plan.
struct Output {
  std::string name;
  Tensor& tensor;
  bool always_repeats;
};

std::vector<Output> outputs_of(const Problem& problem, Workload& workload, Direction direction) {
  if (direction == Direction::forward) return {{"O", workload.output, true}};
  std::vector<Output> outputs = {
      {"dQ", workload.grad_query, false}, {"dK", workload.grad_key, true}, {"dV", workload.grad_value, true}};
  for (std::size_t n = 0; n < problem.tensors.size(); ++n) {
    if (!problem.tensors[n].wants_gradient) continue;
    outputs.push_back({"d" + problem.tensors[n].name, workload.grad_tensors[n], false});
  }
  return outputs;
}

std::vector<Named<std::vector<std::byte>>> contents_of_inputs(const Problem& problem, const Workload& workload) {
  std::vector<Named<std::vector<std::byte>>> inputs = {{"Q", workload.query.contents()},
                                                       {"K", workload.key.contents()},
                                                       {"V", workload.value.contents()},
                                                       {"dO", workload.grad_output.contents()}};
  for (std::size_t n = 0; n < problem.tensors.size(); ++n) {
    inputs.push_back({problem.tensors[n].name, workload.tensors[n].contents()});
  }
  for (std::size_t n = 0; n < problem.mask_tensors.size(); ++n) {
    inputs.push_back({problem.mask_tensors[n].name, workload.mask_tensors[n].contents()});
  }
  return inputs;
}

/// The numbers of all outputs, in the order of outputs_of of both directions: computed by gdpa, and of a reference.
std::vector<std::vector<double>> numbers_of(const Problem& problem, Workload& workload) {
  std::vector<std::vector<double>> numbers;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const Output& output : outputs_of(problem, workload, direction)) numbers.push_back(output.tensor.to_double());
  }
  return numbers;
}

std::vector<std::vector<double>> numbers_of(const Problem& problem, const Reference& reference) {
  std::vector<std::vector<double>> numbers = {reference.output, reference.grad_query, reference.grad_key,
                                              reference.grad_value};
  for (std::size_t n = 0; n < problem.tensors.size(); ++n) {
    if (problem.tensors[n].wants_gradient) numbers.push_back(reference.grad_tensors[n].sums);
  }
  return numbers;
}

/// The sums of squares with which relative_error compares outputs whose terms cancel.
std::vector<double> squares_of(const Problem& problem, const Reference& reference) {
  std::vector<double> squares(4);
  for (std::size_t n = 0; n < problem.tensors.size(); ++n) {
    if (problem.tensors[n].wants_gradient) squares.push_back(reference.grad_tensors[n].squares);
  }
  return squares;
}

/// Calls gdpa once, and returns the contents of the outputs.
std::vector<std::vector<std::byte>> call(Workload& workload, Direction direction, std::vector<Output>& outputs) {
  for (Output& output : outputs) output.tensor.poison();
  direction == Direction::forward ? workload.run_forward() : workload.run_backward();
  std::vector<std::vector<std::byte>> contents;
  for (const Output& output : outputs) contents.push_back(output.tensor.contents());
  return contents;
}

/// The errors of the outputs are unknown until they are compared with the reference.
CheckedDirection compute(const Problem& problem, Workload& workload, Direction direction,
                         const std::function<void(const std::string&)>& at) {
  const double promise = promised_error(problem.dtype, problem.allow_tf32);
  at(fmt::format("compiling {}", name_of(direction)));
  CheckedDirection checked{
      direction, explain(workload.attention(), direction, "", wanted_gradients("qkv", problem)), {}, {}};
  at(name_of(direction));
  const auto inputs = contents_of_inputs(problem, workload);
  std::vector<Output> outputs = outputs_of(problem, workload, direction);
  const auto first = call(workload, direction, outputs);
  const auto second = call(workload, direction, outputs);
  for (std::size_t n = 0; n < outputs.size(); ++n) {
    const bool is_promised = outputs[n].always_repeats || checked.plan.deterministic;
    checked.outputs.push_back({outputs[n].name, 0, promise, !is_promised || first[n] == second[n]});
  }
  const auto inputs_after = contents_of_inputs(problem, workload);
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    if (inputs[n].element != inputs_after[n].element) checked.changed_inputs.push_back(inputs[n].name);
  }
  return checked;
}

}  // namespace

std::string CheckedOutput::complaint() const {
  if (std::isnan(error)) return "NaN";
  if (error > promise) return "above";
  return repeats ? "" : "other bits in a second call";
}

bool CheckedDirection::ok() const {
  return changed_inputs.empty() &&
         std::all_of(outputs.begin(), outputs.end(), [](const CheckedOutput& output) { return output.ok(); });
}

bool is_ok(const Checked& checked) {
  return std::all_of(checked.begin(), checked.end(), [](const CheckedDirection& one) { return one.ok(); });
}

const char* name_of(Direction direction) { return direction == Direction::forward ? "forward" : "backward"; }

Json to_json(const CheckedOutput& output) {
  return {{"error", output.error}, {"promise", output.promise}, {"repeats", output.repeats}, {"ok", output.ok()}};
}

Checked compute_and_check(const Problem& problem, Workload& workload,
                          const std::function<void(const std::string& step)>& at) {
  const auto begin = [&](const std::string& step) {
    if (at) at(step);
  };
  Checked checked;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    checked.push_back(compute(problem, workload, direction, begin));
  }
  begin("reference");
  const Reference exact = compute_reference(problem, workload);
  std::optional<Reference> of_type;
  const auto got = numbers_of(problem, workload);
  const auto expected = numbers_of(problem, exact);
  const auto squares = squares_of(problem, exact);
  std::size_t n = 0;
  for (CheckedDirection& direction : checked) {
    for (CheckedOutput& output : direction.outputs) {
      output.error = relative_error(got[n], expected[n], squares[n]);
      if (output.error > output.promise) {
        if (!of_type) of_type = compute_reference(problem, workload, Precision::of_type);
        const double error = relative_error(numbers_of(problem, *of_type)[n], expected[n], squares[n]);
        output.promise = std::max(output.promise, 2 * error);
      }
      ++n;
    }
  }
  return checked;
}

}  // namespace gdpa::tool
