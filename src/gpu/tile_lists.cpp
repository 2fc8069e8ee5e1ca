// See tile_lists.h.
#include "gpu/tile_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "gdpa/error.h"
#include "gpu/kernels/list_tiles.h"
#include "gpu/plan.h"
#include "gpu/workspace.h"

namespace gdpa::gpu {
namespace {

using plan::TileListsPlan;

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

TileListsPlan lists_for(const Problem& problem, int tile_queries, int tile_keys) {
  TileListsPlan lists;
  lists.tile_queries = tile_queries;
  lists.tile_keys = tile_keys;
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

int lists_of_tiles(const Problem& problem, int tile_queries, int tile_keys, bool reads_query_lists, GpuPlan& plan) {
  if (!problem.has_mask_expression) return 0;
  std::vector<TileListsPlan>& all = plan.tile_lists;
  const auto is_same = [&](const TileListsPlan& lists) { return lists.is_of(tile_queries, tile_keys); };
  auto lists = std::ranges::find_if(all, is_same);
  if (lists == all.end()) {
    if (all.size() == static_cast<std::size_t>(most_tile_lists)) {
      throw Error(ErrorKind::runtime, "a plan has kernels with too many different tiles");
    }
    lists = all.insert(lists, lists_for(problem, tile_queries, tile_keys));
  }
  lists->has_query_lists |= reads_query_lists;
  return static_cast<int>(lists - all.begin());
}

void place_tile_lists(const Call& call, GpuPlan& plan, std::vector<Launch>& launches) {
  const Problem& problem = call.problem;
  for (std::size_t i = 0; i < plan.tile_lists.size(); ++i) {
    TileListsPlan& lists = plan.tile_lists[i];
    if (problem.prepared == nullptr) {
      reserve(problem, lists, plan.workspace);
      list_tiles(problem, lists, static_cast<int>(i), launches);
      continue;
    }
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
}

void set_tile_lists(const GpuPlan& plan, const Problem& problem, std::byte* workspace, CommonArguments& arguments) {
  std::byte* const memory = problem.prepared == nullptr ? workspace : static_cast<std::byte*>(problem.prepared->data);
  for (std::size_t i = 0; i < plan.tile_lists.size(); ++i) {
    const TileListsPlan& of = plan.tile_lists[i];
    TileLists& lists = arguments.params.tile_lists[i];
    static_cast<TileListSizes&>(lists) = of;
    lists.entries = reinterpret_cast<ListedEntry*>(memory + of.entries);
    lists.key_tiles = reinterpret_cast<int*>(memory + of.key_tiles);
    if (of.has_query_lists) lists.query_tiles = reinterpret_cast<int*>(memory + of.query_tiles);
  }
}

GpuPlan plan_prepared_lists(const Call& call, const GpuPlan& of_call, plan::PreparedTiles& prepared) {
  GpuPlan plan;
  plan.tile_lists = of_call.tile_lists;
  plan.workspace = WorkspaceLayout(prepared.bytes);
  for (std::size_t i = 0; i < plan.tile_lists.size(); ++i) {
    TileListsPlan& lists = plan.tile_lists[i];
    if (find(prepared, lists) != nullptr) continue;
    reserve(call.problem, lists, plan.workspace);
    list_tiles(call.problem, lists, static_cast<int>(i), plan.launches);
    prepared.lists.push_back(lists);
  }
  prepared.bytes = plan.workspace.bytes();
  return plan;
}

}  // namespace gdpa::gpu
