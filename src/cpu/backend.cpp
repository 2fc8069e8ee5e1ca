// One call of the CPU backend: it makes the schedule, computes the units on threads, and adds the partial sums.
#include "cpu/backend.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "cpu/call.h"
#include "cpu/targets.h"
#include "cpu/unused_rows.h"
#include "hwy/targets.h"

namespace gdpa::cpu {
namespace {

/// Calls work(0) ... work(count - 1), each once, on at most `threads` threads including the calling thread, and returns
/// when all calls have returned. Each free thread takes the next one. With one thread it wakes no other thread. If
/// `work` throws an exception, the function throws it after the other threads have stopped.
template <class Work>
void for_each_unit(int threads, std::size_t count, const Work& work) {
  if (threads <= 1 || count <= 1) {
    for (std::size_t i = 0; i < count; ++i) work(i);
    return;
  }
  std::atomic<std::size_t> next{0};
  auto take_units = [&](int) {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  // In a separate arena, the calling thread cannot run other tasks of the program while it waits.
  tbb::task_arena arena(threads);
  arena.execute([&] { tbb::parallel_for(0, threads, take_units, tbb::simple_partitioner()); });
}

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
               const activation::Function* mask_expression, const plan::CpuSchedule& schedule) {
  AlignedMemory partial_sums;
  if (schedule.partial_elements > 0) {
    partial_sums = allocate_aligned(schedule.partial_elements * static_cast<int64_t>(sizeof(double)));
  }
  const InputPlan inputs(function);
  const MaskPlan mask(mask_expression, params);
  const bool forward = problem.direction == Direction::forward;
  const bool needs_derivative = !forward && (problem.wanted.query || problem.wanted.key);
  const auto program = [&](int64_t head) -> const activation::Program& {
    const activation::Function& of_head = function.of_head(head);
    return needs_derivative ? of_head.value_and_derivative() : of_head.value();
  };
  const HeadEvaluators evaluators(function, params.parameters, params.heads_q, program);
  const std::vector<Group> groups =
      problem.wanted.parameters == 0 || forward
          ? std::vector<Group>{}
          : groups_of(schedule, ParameterSums::group_count(params, schedule.threads, schedule.units.size()));
  ParameterSums parameter_sums(function, params, static_cast<int64_t>(groups.size()));
  const Call<T> call{parameter_sums.params(),
                     mask,
                     inputs,
                     evaluators,
                     schedule,
                     problem.wanted,
                     parameter_sums,
                     static_cast<double*>(partial_sums.get()),
                     added_operand(problem, params)};
  if (parameter_sums.is_empty()) {
    for_each_unit(schedule.threads, schedule.units.size(), [&](std::size_t i) {
      forward ? forward_unit<T>(call, schedule.units[i]) : backward_unit<T>(call, schedule.units[i], 0);
    });
  } else {
    for_each_unit(schedule.threads, groups.size(), [&](std::size_t group) {
      for (const plan::CpuUnit* unit : groups[group]) backward_unit<T>(call, *unit, static_cast<int64_t>(group));
    });
  }
  for_each_unit(schedule.threads, schedule.reductions.size(),
                [&](std::size_t i) { reduce<T>(call, schedule.reductions[i]); });
  if (!parameter_sums.is_empty()) parameter_sums.store(params);
}

}  // namespace

void run(const Problem& problem, const Params& params, const activation::Function& function,
         const activation::Function* mask, const plan::Processor& processor) {
  static const bool is_supported = (hwy::SupportedTargets() & HWY_TARGETS) != 0;  // asking takes 25 us
  if (!is_supported) refuse_system();
  fill_unused_rows(problem, params, added_operand(problem, params));
  const plan::CpuSchedule schedule = plan::schedule_for_cpu(problem, params, processor);
  switch (problem.dtype) {
    case DType::float32:
      return run_units<float>(problem, params, function, mask, schedule);
    case DType::float64:
      return run_units<double>(problem, params, function, mask, schedule);
    case DType::bfloat16:
      return run_units<BFloat16>(problem, params, function, mask, schedule);
    case DType::float16:
      return run_units<Float16>(problem, params, function, mask, schedule);
    case DType::int32:
    case DType::int64:
      break;
  }
}

}  // namespace gdpa::cpu
