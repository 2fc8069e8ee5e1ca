// The host file of kernels/portable/group_entries.cuh, which lists the batch entries of each sequence of keys.
#pragma once

#include <utility>
#include <vector>

#include "gpu/launch.h"
#include "gpu/sequences.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct GroupEntries : NoConfig {
  using Arguments = portable::GroupEntriesArguments;
  static constexpr KernelNames names = {"portable", "group_entries", "group_entries", "GroupEntriesArguments"};
};

/// GroupEntriesArguments::run of each launch.
inline std::vector<int64_t> runs_of_entries(const Problem& problem) {
  std::vector<int64_t> runs = {0};
  for (int64_t run = portable::group_entries_block; run < problem.batch; run *= 2) runs.push_back(run);
  if (runs.size() > 1) runs.push_back(problem.batch);
  return runs;
}

/// Adds the launches: one sorts blocks of entries, some merge them, and the last one finds the first entries.
inline void group_entries(const Problem& problem, const SequencesPlan& plan, std::vector<Launch>& launches) {
  const int64_t ctas = divide_up(problem.batch + problem.key_entries() + 1, int64_t{portable::group_entries_numbers});
  const std::vector<int64_t> runs = runs_of_entries(problem);
  int64_t from = plan.merged_entries, to = plan.entries;
  // Each merge writes to the other array, and the last one to the entries.
  const bool has_odd_merges = runs.size() > 1 && runs.size() % 2 == 1;
  if (has_odd_merges) std::swap(from, to);
  for (const int64_t run : runs) {
    const bool is_search = run > 0 && run >= problem.batch;
    const int64_t result = is_search ? plan.entries : to;
    launches.push_back(
        Launch::of(GroupEntries(), ctas, [run, from, result, first = plan.first_entry](const BoundCall& call) {
          return portable::GroupEntriesArguments{call.params.keys,   call.problem.batch,   run,
                                                 call.at<int>(from), call.at<int>(result), call.at<int>(first)};
        }));
    std::swap(from, to);
  }
}

}  // namespace gdpa::gpu
