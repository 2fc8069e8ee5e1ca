// See sequences.h.
#include "gpu/sequences.h"

#include "gpu/kernels/find_overlap.h"
#include "gpu/kernels/group_entries.h"
#include "gpu/kernels/locate_sequences.h"

namespace gdpa::gpu {
namespace {

bool locates_keys(const Problem& problem) {
  return problem.has_key_gaps || (problem.key_form == Form::jagged && problem.has_batch_map);
}

/// Whether key-major kernels own sequences of keys that several batch entries may have (KeySequences).
bool has_key_sequences(const Problem& problem) {
  return problem.has_batch_map && problem.direction == Direction::backward && problem.wanted.of_operands();
}

/// The results of locate_sequences: the begins, the ends and the sums.
int64_t bytes_of_places(int64_t entries) { return 3 * (entries + 1) * static_cast<int64_t>(sizeof(int64_t)); }

void set_places(std::byte* workspace, int64_t offset, int64_t entries, Sequences& side) {
  if (offset < 0) return;
  const auto* const numbers = reinterpret_cast<const int64_t*>(workspace + offset);
  const int64_t count = entries + 1;
  side = {};
  side.begins = {numbers, 1, true};
  side.ends = {numbers + count, 1, true};
  side.rows_before = numbers + 2 * count;
}

}  // namespace

bool locates_queries(const Problem& problem) {
  return problem.has_query_gaps || (problem.has_output_offsets && problem.query_form == Form::jagged);
}

SequencesPlan plan_sequences(const Call& call, bool finds_overlap, WorkspaceLayout& workspace,
                             std::vector<Launch>& launches) {
  const Problem& problem = call.problem;
  const bool has_owners = has_key_sequences(problem);
  SequencesPlan plan;
  const auto reserve_places = [&](int64_t entries) { return workspace.reserve(bytes_of_places(entries)); };
  if (locates_queries(problem)) plan.queries = reserve_places(problem.batch);
  if (problem.has_output_offsets) plan.outputs = reserve_places(problem.batch);
  if (locates_keys(problem)) plan.keys = reserve_places(problem.batch);
  if (has_owners && problem.has_key_gaps) plan.owners = reserve_places(problem.key_entries());
  if (plan.queries >= 0 || plan.outputs >= 0 || plan.keys >= 0) launches.push_back(locate_sequences(plan));
  if (finds_overlap) {
    const int64_t bytes = (1 + divide_up(problem.rows_k, 32)) * static_cast<int64_t>(sizeof(int));
    plan.overlap = workspace.reserve(bytes);
    launches.push_back(Launch::clear(plan.overlap, bytes));
    launches.push_back(find_overlap(problem, plan.overlap));
  }
  if (has_owners) {
    const auto numbers = [](int64_t count) { return count * static_cast<int64_t>(sizeof(int)); };
    plan.entries = workspace.reserve(numbers(problem.batch));
    plan.first_entry = workspace.reserve(numbers(problem.key_entries() + 1));
    plan.merged_entries = workspace.reserve(numbers(problem.batch));
    group_entries(problem, plan, launches);
  }
  return plan;
}

void set_sequences(const SequencesPlan& plan, const Problem& problem, const Params& params, std::byte* workspace,
                   CommonArguments& arguments) {
  if (plan.entries >= 0) {
    arguments.key_sequences = {params.keys, problem.key_entries(),
                               reinterpret_cast<const int*>(workspace + plan.entries),
                               reinterpret_cast<const int*>(workspace + plan.first_entry)};
    arguments.key_sequences.side.map = {};
    set_places(workspace, plan.owners, problem.key_entries(), arguments.key_sequences.side);
  }
  set_places(workspace, plan.queries, problem.batch, arguments.params.queries);
  set_places(workspace, plan.keys, problem.batch, arguments.params.keys);
  set_places(workspace, plan.outputs, problem.batch, arguments.params.outputs);
  if (plan.overlap >= 0) arguments.keys_overlap = reinterpret_cast<const int*>(workspace + plan.overlap);
}

}  // namespace gdpa::gpu
