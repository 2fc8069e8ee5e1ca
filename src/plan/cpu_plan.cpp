// The CPU plan as text and numbers: the decisions of cpu_units.h, and the amount of work.
#include "plan/cpu_plan.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "plan/cpu_units.h"
#include "plan/work.h"

namespace gdpa::plan {
namespace {

Processor ask_system() {
  Processor processor;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) processor.threads = std::max(1, CPU_COUNT(&allowed));
  const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (cache > 0) processor.cache_bytes = cache;
  return processor;
}

int64_t memory_of(const Problem& problem, const CpuSchedule& schedule) {
  const int64_t buffers = schedule.threads * schedule.buffers.total * compute_bytes(problem);
  const int64_t partial_sums = schedule.partial_elements * static_cast<int64_t>(sizeof(double));
  const std::size_t lists = schedule.units.size() * sizeof(CpuUnit) + schedule.reductions.size() * sizeof(CpuReduction);
  return buffers + partial_sums + static_cast<int64_t>(lists);
}

const char* name_of(Direction direction, CpuCut cut) {
  if (direction == Direction::forward) return "query blocks";
  switch (cut) {
    case CpuCut::whole:
      return "whole sequences";
    case CpuCut::partial:
      return "partial sums";
    case CpuCut::separate:
      return "separate gradients";
  }
  return "";
}

/// The gradients that are computed: "dQ, dK and dV", "dK and dV", "dQ".
std::string names_of(const WantedGradients& wanted) {
  std::vector<const char*> names;
  if (wanted.query) names.push_back("dQ");
  if (wanted.key) names.push_back("dK");
  if (wanted.value) names.push_back("dV");
  if (names.size() == 1) return names.front();
  const char* const last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

std::string reason_for(const Problem& problem, CpuCut cut) {
  if (problem.direction == Direction::forward) {
    return "each unit has its rows of Q and O in the cache during the loop over keys; threads take the largest units "
           "first";
  }
  const WantedGradients& wanted = problem.wanted;
  const WantedGradients of_keys{false, wanted.key, wanted.value};
  switch (cut) {
    case CpuCut::whole:
      if (!of_keys.any()) return "each row of dQ is a sum of one unit alone, so each unit computes dQ of some queries";
      return fmt::format("there are enough sequences and heads to fill the threads, so each unit computes {} of one",
                         names_of(wanted));
    case CpuCut::partial:
      return "several units add to the same gradient (a shared operand, or too few sequences for the threads), so each "
             "unit has a partial sum, and the partial sums are added in a fixed order";
    case CpuCut::separate:
      if (!wanted.query || !of_keys.any()) {
        return fmt::format("partial sums would not fit in memory, so each unit alone computes {} of its rows",
                           names_of(wanted));
      }
      return fmt::format(
          "partial sums would not fit in memory, so some units own dQ and others {}, and scores are computed twice",
          names_of(of_keys));
  }
  return "";
}

}  // namespace

const Processor& this_processor() {
  static const Processor processor = ask_system();
  return processor;
}

Plan plan_for_cpu(const Problem& problem, const Params& params, const Processor& processor) {
  const CpuSchedule schedule = schedule_for_cpu(problem, params, processor);
  Plan plan;
  plan.direction = problem.direction;
  plan.kernel = problem.direction == Direction::forward ? "cpu.forward" : "cpu.backward";
  plan.schedule = name_of(problem.direction, schedule.cut);
  plan.reason = reason_for(problem, schedule.cut);
  plan.tile_queries = schedule.tiles.queries;
  plan.tile_keys = schedule.tiles.keys;
  plan.threads = schedule.threads;
  plan.units = static_cast<int64_t>(schedule.units.size());
  plan.workspace_bytes = memory_of(problem, schedule);
  plan.deterministic = true;
  plan.flops = flops_of(problem, params);
  plan.bytes = traffic_of(problem, params);
  return plan;
}

}  // namespace gdpa::plan
