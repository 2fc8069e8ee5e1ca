// See tile_lists_plan.h.
#include "families/tile_lists_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "families/planning.h"
#include "gdpa/error.h"
#include "portable/arguments.cuh"

namespace gdpa::families {
namespace {

using plan::GpuStep;
using plan::KernelKind;
using plan::KernelSpec;
using plan::TileListsPlan;

/// Whether a kernel reads the lists of query tiles.
bool reads_query_lists(KernelKind kind) {
  return kind == KernelKind::backward || kind == KernelKind::wide_backward || kind == KernelKind::key_schedule ||
         kind == KernelKind::complete_terms;
}

/// The tiles of all entries of a side, and one more for each entry.
int64_t most_tiles_and_ends(const Side& side, int64_t batch, int64_t tile) {
  const int64_t tiles = side.form == Form::jagged ? side.rows / tile + batch : batch * divide_up(side.length(), tile);
  return tiles + batch;
}

/// The largest sum of (q + 1) (k + 1) over the entries for which there is memory. The host does not know the lengths of
/// a jagged batch, and one entry may have all rows. Batches in which a tile has more than `mean` partner tiles on
/// average are rare, and their lists would take too much memory. Their last entries have no lists.
int64_t capacity_of(const Problem& problem, const TileListsPlan& lists) {
  constexpr int64_t least = int64_t{1} << 23, mean = 64;
  const Side queries = queries_of(problem), keys = keys_of(problem);
  const int64_t batch = std::max<int64_t>(1, problem.batch);
  const int64_t of_queries = most_tiles_and_ends(queries, batch, lists.tile_queries);
  if (queries.form != Form::jagged && keys.form != Form::jagged) {
    return of_queries * (divide_up(keys.length(), lists.tile_keys) + 1);
  }
  // Entries with a batch map or overlapping sequences may have more keys together than the operand has rows.
  const int64_t of_key_entries = most_tiles_and_ends(keys, batch, lists.tile_keys);
  const int64_t most_of_entry = divide_up(keys.rows, lists.tile_keys) + 1;
  return std::min(of_queries * most_of_entry, std::max(least, mean * (of_queries + of_key_entries)));
}

TileListsPlan lists_for(const Problem& problem, const KernelSpec& kernel) {
  TileListsPlan lists;
  lists.tile_queries = kernel.tile_queries;
  lists.tile_keys = kernel.tile_keys;
  if (problem.mask_depends_on_head) {
    lists.heads = static_cast<int>(problem.heads_k);
    lists.heads_of_list = static_cast<int>(problem.heads_q / problem.heads_k);
  }
  lists.capacity = capacity_of(problem, lists);
  return lists;
}

/// Reserves the arrays of lists.
void reserve(const Problem& problem, TileListsPlan& lists, WorkspaceLayout& layout) {
  const int64_t elements = lists.heads * lists.capacity;
  lists.entries = layout.reserve(problem.batch * static_cast<int64_t>(sizeof(ListedEntry)));
  lists.key_tiles = layout.reserve(elements * static_cast<int64_t>(sizeof(int)));
  if (lists.has_query_lists) lists.query_tiles = layout.reserve(2 * elements * static_cast<int64_t>(sizeof(int)));
}

/// Adds the kernels that write lists. `index` is their position in Params::tile_lists.
void add_list_steps(const Problem& problem, const TileListsPlan& lists, int index, std::vector<GpuStep>& steps) {
  KernelSpec kernel;
  kernel.tile_lists = index;
  select_structs(kernel, problem);
  const auto add = [&](KernelKind kind, int64_t work) {
    kernel.kind = kind;
    kernel.mask_types = kind == KernelKind::list_key_tiles ? problem.mask_types : 0;
    steps.push_back({kernel, work});
  };
  const auto ctas_of = [&](const Side& side, int tile) {
    const int64_t batch = std::max<int64_t>(1, problem.batch);
    const int64_t slots = side.form == Form::jagged ? side.most_tiles(tile, 1) : batch * divide_up(side.length(), tile);
    return divide_up(lists.heads * slots, portable::list_warps);
  };
  add(KernelKind::locate_lists, 1);
  add(KernelKind::list_key_tiles, ctas_of(queries_of(problem), lists.tile_queries));
  if (lists.has_query_lists) add(KernelKind::list_query_tiles, ctas_of(keys_of(problem), lists.tile_keys));
}

/// Collects the lists that the kernels of a plan read, and sets their index in each kernel.
std::vector<TileListsPlan> lists_of(const Problem& problem, plan::GpuPlan& plan) {
  std::vector<TileListsPlan> all;
  const auto assign = [&](std::vector<GpuStep>& steps) {
    for (GpuStep& step : steps) {
      KernelSpec& kernel = step.kernel;
      if (!plan::has_mask(kernel.kind)) continue;
      auto lists = std::find_if(all.begin(), all.end(), [&](const TileListsPlan& other) {
        return other.is_of(kernel.tile_queries, kernel.tile_keys);
      });
      if (lists == all.end()) lists = all.insert(lists, lists_for(problem, kernel));
      lists->has_query_lists |= reads_query_lists(kernel.kind);
      kernel.tile_lists = static_cast<int>(lists - all.begin());
    }
  };
  assign(plan.steps);
  assign(plan.parameter_steps);
  assign(plan.overlap_steps);
  if (all.size() > static_cast<std::size_t>(most_tile_lists)) {
    throw Error(ErrorKind::runtime, "a plan has kernels with too many different tiles");
  }
  return all;
}

std::string sizes_of(const std::vector<TileListsPlan>& all) {
  std::string text;
  for (const TileListsPlan& lists : all) {
    text += fmt::format("{}{} x {}{}", text.empty() ? "" : ", ", lists.tile_queries, lists.tile_keys,
                        lists.has_query_lists ? " (backward)" : "");
  }
  return text;
}

/// The prepared lists of kernels with these tiles; null if there are none.
const TileListsPlan* find(const plan::PreparedTiles& prepared, const TileListsPlan& wanted) {
  for (const TileListsPlan& lists : prepared.lists) {
    const bool is_same = lists.is_of(wanted.tile_queries, wanted.tile_keys) && lists.heads == wanted.heads &&
                         lists.heads_of_list == wanted.heads_of_list;
    if (is_same && (lists.has_query_lists || !wanted.has_query_lists)) return &lists;
  }
  return nullptr;
}

}  // namespace

void add_tile_lists(const Problem& problem, plan::GpuPlan& plan) {
  if (!problem.has_mask_expression) return;
  plan.tile_lists = lists_of(problem, plan);
  if (problem.prepared != nullptr) {
    for (TileListsPlan& lists : plan.tile_lists) {
      const TileListsPlan* const prepared = find(*problem.prepared, lists);
      if (prepared == nullptr) {
        throw Error(ErrorKind::value,
                    fmt::format("prepared_mask: expected a mask that is prepared for tiles of {}, got one for tiles of "
                                "{}; prepare it with the arguments of this call, and for backward if it is one (the "
                                "kernels of this call: {})",
                                sizes_of({lists}), sizes_of(problem.prepared->lists), plan.reason));
      }
      lists = *prepared;
    }
    return;
  }
  WorkspaceLayout layout(plan.workspace);
  for (std::size_t i = 0; i < plan.tile_lists.size(); ++i) {
    reserve(problem, plan.tile_lists[i], layout);
    add_list_steps(problem, plan.tile_lists[i], static_cast<int>(i), plan.list_steps);
  }
}

plan::GpuPlan plan_prepared_lists(const Problem& problem, const plan::GpuPlan& of_call, plan::PreparedTiles& prepared) {
  plan::GpuPlan plan;
  plan.tile_lists = of_call.tile_lists;
  plan.workspace.bytes = prepared.bytes;
  WorkspaceLayout layout(plan.workspace);
  for (std::size_t i = 0; i < plan.tile_lists.size(); ++i) {
    TileListsPlan& lists = plan.tile_lists[i];
    if (find(prepared, lists) != nullptr) continue;
    reserve(problem, lists, layout);
    add_list_steps(problem, lists, static_cast<int>(i), plan.list_steps);
    prepared.lists.push_back(lists);
  }
  prepared.bytes = plan.workspace.bytes;
  return plan;
}

}  // namespace gdpa::families
