// One call of the CPU backend: it makes the schedule, computes the units on threads, and adds the partial sums.
#include "cpu/backend.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/call.h"
#include "cpu/threads.h"
#include "cpu/unused_rows.h"
#include "cpu/workspace.h"

namespace gdpa::cpu {
namespace {

/// The schedule of the calling thread. Calls reuse its memory, so that small problems allocate nothing. A call moves
/// the schedule out of the thread's storage, because a thread that waits inside a call may enter another call.
class ReusedSchedule {
 public:
  ReusedSchedule() : schedule_(std::move(of_thread())) {}
  ~ReusedSchedule() { of_thread() = std::move(schedule_); }
  ReusedSchedule(const ReusedSchedule&) = delete;
  ReusedSchedule& operator=(const ReusedSchedule&) = delete;
  plan::CpuSchedule& operator*() { return schedule_; }

 private:
  static plan::CpuSchedule& of_thread() {
    thread_local plan::CpuSchedule schedule;
    return schedule;
  }
  plan::CpuSchedule schedule_;
};

/// Units that one thread computes one after the other.
using Group = std::vector<const plan::CpuUnit*>;

/// Distributes the units, which are in the order of decreasing costs, to groups of nearly equal costs. The groups
/// depend on the schedule and their number only.
std::vector<Group> groups_of(const plan::CpuSchedule& schedule, int64_t count) {
  std::vector<Group> groups(static_cast<std::size_t>(count));
  std::vector<double> costs(groups.size());
  for (const plan::CpuUnit& unit : schedule.units) {
    const auto lowest = static_cast<std::size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
    groups[lowest].push_back(&unit);
    costs[lowest] += unit.cost;
  }
  return groups;
}

/// The operand that is added to the rows of O or dQ; null: none.
const Operand* added_operand(const Problem& problem, const Params& params) {
  if (!problem.add_query) return nullptr;
  return problem.direction == Direction::forward ? &params.query : &params.grad_output;
}

template <class T>
void run_units(const Problem& problem, const Params& params, const activation::Function& function,
               const activation::Function* mask_expression, const std::vector<Evaluator>& evaluators,
               const plan::CpuSchedule& schedule) {
  AlignedMemory partial_sums;
  if (schedule.partial_elements > 0) {
    partial_sums = allocate_aligned(schedule.partial_elements * static_cast<int64_t>(sizeof(double)));
  }
  const InputPlan inputs(function);
  const MaskPlan mask(mask_expression, params);
  const bool forward = problem.direction == Direction::forward;
  const std::vector<Group> groups =
      problem.wanted.parameters == 0 || forward
          ? std::vector<Group>{}
          : groups_of(schedule, ParameterSums::group_count(params, schedule.threads, schedule.units.size()));
  ParameterSums parameter_sums(function, params, static_cast<int64_t>(groups.size()));
  const Call<T> call{parameter_sums.params(),
                     mask,
                     inputs,
                     evaluators.data(),
                     schedule,
                     problem.wanted,
                     parameter_sums,
                     static_cast<double*>(partial_sums.get()),
                     added_operand(problem, params)};
  if (parameter_sums.is_empty()) {
    for_each_unit(schedule.threads, static_cast<int64_t>(schedule.units.size()), [&](int64_t i) {
      const plan::CpuUnit& unit = schedule.units[static_cast<std::size_t>(i)];
      forward ? forward_unit<T>(call, unit) : backward_unit<T>(call, unit, 0);
    });
  } else {
    for_each_unit(schedule.threads, static_cast<int64_t>(groups.size()), [&](int64_t group) {
      for (const plan::CpuUnit* unit : groups[static_cast<std::size_t>(group)]) backward_unit<T>(call, *unit, group);
    });
  }
  for_each_unit(schedule.threads, static_cast<int64_t>(schedule.reductions.size()),
                [&](int64_t i) { reduce<T>(call, schedule.reductions[static_cast<std::size_t>(i)]); });
  if (!parameter_sums.is_empty()) parameter_sums.store(params);
}

/// The evaluator of f, or of f and f'. If the function has inputs, one for each query head.
std::vector<Evaluator> evaluators_of(const activation::Function& function, bool needs_derivative,
                                     const Params& params) {
  const int64_t count = function.inputs().empty() ? 1 : params.heads_q;
  std::vector<Evaluator> evaluators;
  evaluators.reserve(static_cast<std::size_t>(count));
  for (int64_t head = 0; head < count; ++head) {
    const activation::Function& of_head = function.of_head(head);
    evaluators.emplace_back(needs_derivative ? of_head.value_and_derivative() : of_head.value(),
                            inputs_of_head(function, params.parameters, head));
  }
  return evaluators;
}

}  // namespace

void run(const Problem& problem, const Params& params, const activation::Function& function,
         const activation::Function* mask, const plan::Processor& processor) {
  fill_unused_rows(problem, params, added_operand(problem, params));
  ReusedSchedule reused;
  plan::CpuSchedule& schedule = *reused;
  plan::schedule_for_cpu(problem, params, processor, schedule);
  const bool needs_derivative =
      problem.direction == Direction::backward && (problem.wanted.query || problem.wanted.key);
  const std::vector<Evaluator> evaluators = evaluators_of(function, needs_derivative, params);
  switch (problem.dtype) {
    case DType::float32:
      return run_units<float>(problem, params, function, mask, evaluators, schedule);
    case DType::float64:
      return run_units<double>(problem, params, function, mask, evaluators, schedule);
    case DType::bfloat16:
      return run_units<BFloat16>(problem, params, function, mask, evaluators, schedule);
    case DType::float16:
      return run_units<Float16>(problem, params, function, mask, evaluators, schedule);
    case DType::int32:
    case DType::int64:
      break;
  }
}

}  // namespace gdpa::cpu
