// The plan of the lists of partner tiles of a mask expression: which lists a call has, where they lie, and which
// prepared lists its kernels can read. No GPU is needed.
#include "families/tile_lists_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gdpa/error.h"

namespace gdpa::families {
namespace {

using gpu::GpuPlan;
using plan::KernelKind;
using plan::TileListsPlan;

constexpr int tile_queries = 64, tile_keys = 128;

Problem problem_with_mask() {
  Problem problem;
  problem.direction = Direction::backward;
  problem.batch = 3;
  problem.rows_q = problem.rows_k = 5000;
  problem.heads_q = 6;
  problem.heads_k = 2;
  problem.has_mask_expression = problem.mask_depends_on_head = true;
  return problem;
}

/// A plan with kernels of these kinds, which have tiles of one size.
GpuPlan plan_with(const std::vector<KernelKind>& kinds) {
  GpuPlan plan;
  for (const KernelKind kind : kinds) {
    plan::KernelSpec kernel;
    kernel.kind = kind;
    kernel.tile_queries = tile_queries;
    kernel.tile_keys = tile_keys;
    plan.steps.push_back({kernel, 1});
  }
  return plan;
}

/// The message of the refusal to run kernels of this kind with prepared lists. Empty if the kernels can read them.
std::string refusal_of(KernelKind kind, const TileListsPlan& prepared) {
  plan::PreparedTiles tiles;
  tiles.lists = {prepared};
  Problem problem = problem_with_mask();
  problem.prepared = std::make_shared<plan::PreparedTiles>(tiles);
  GpuPlan plan = plan_with({kind});
  try {
    add_tile_lists(problem, plan);
  } catch (const Error& error) {
    return error.what();
  }
  EXPECT_TRUE(plan.list_steps.empty()) << "the lists are there";
  return "";
}

TEST(TileListsPlan, KernelsOfOneTileSizeShareListsInEitherOrder) {
  for (const std::vector<KernelKind>& kinds : {std::vector{KernelKind::backward, KernelKind::round_grad_query},
                                               std::vector{KernelKind::round_grad_query, KernelKind::backward}}) {
    GpuPlan plan = plan_with(kinds);
    add_tile_lists(problem_with_mask(), plan);
    ASSERT_EQ(plan.tile_lists.size(), 1U);
    EXPECT_TRUE(plan.tile_lists[0].has_query_lists) << "backward reads them";
    EXPECT_EQ(plan.list_steps.back().kernel.kind, KernelKind::list_query_tiles);
  }
}

TEST(TileListsPlan, ForwardHasNoListsOfQueryTiles) {
  GpuPlan plan = plan_with({KernelKind::forward});
  add_tile_lists(problem_with_mask(), plan);
  ASSERT_EQ(plan.tile_lists.size(), 1U);
  EXPECT_FALSE(plan.tile_lists[0].has_query_lists);
  EXPECT_EQ(plan.list_steps.back().kernel.kind, KernelKind::list_key_tiles);
}

/// TileLists describes the lists: an element for each tile of keys, and two for each tile of queries.
TEST(TileListsPlan, TheArraysOfAllListsLieOneBehindTheOther) {
  GpuPlan plan = plan_with({KernelKind::backward, KernelKind::forward});
  plan.steps[1].kernel.tile_keys = 64;
  add_tile_lists(problem_with_mask(), plan);
  ASSERT_EQ(plan.tile_lists.size(), 2U);
  struct Array {
    int64_t begin;
    int64_t bytes;
  };
  std::vector<Array> arrays;
  for (const TileListsPlan& lists : plan.tile_lists) {
    EXPECT_EQ(lists.heads, 2) << "one for each key head";
    EXPECT_EQ(lists.heads_of_list, 3);
    const int64_t bytes = lists.heads * lists.capacity * static_cast<int64_t>(sizeof(int));
    arrays.push_back({lists.entries, 3 * static_cast<int64_t>(sizeof(ListedEntry))});
    arrays.push_back({lists.key_tiles, bytes});
    if (lists.has_query_lists) arrays.push_back({lists.query_tiles, 2 * bytes});
  }
  ASSERT_EQ(arrays.size(), 5U);
  std::ranges::sort(arrays, {}, &Array::begin);
  int64_t end = 0;
  for (const Array& array : arrays) {
    EXPECT_GE(array.begin, end);
    end = array.begin + array.bytes;
  }
  EXPECT_GE(plan.workspace.bytes, end);
}

TEST(TileListsPlan, PreparedListsOfBackwardAreForForwardTooAndNotTheOtherWay) {
  GpuPlan of_backward = plan_with({KernelKind::backward}), of_forward = plan_with({KernelKind::forward});
  add_tile_lists(problem_with_mask(), of_backward);
  add_tile_lists(problem_with_mask(), of_forward);
  const TileListsPlan backward = of_backward.tile_lists[0], forward = of_forward.tile_lists[0];
  EXPECT_EQ(refusal_of(KernelKind::backward, backward), "");
  EXPECT_EQ(refusal_of(KernelKind::forward, backward), "");
  EXPECT_EQ(refusal_of(KernelKind::forward, forward), "");
  EXPECT_NE(refusal_of(KernelKind::backward, forward).find("and for backward if it is one"), std::string::npos);
}

TEST(TileListsPlan, PreparedListsOfOtherTilesOrHeadsAreRefused) {
  GpuPlan plan = plan_with({KernelKind::forward});
  add_tile_lists(problem_with_mask(), plan);
  const auto refused = [&](auto change) {
    TileListsPlan lists = plan.tile_lists[0];
    change(lists);
    return !refusal_of(KernelKind::forward, lists).empty();
  };
  EXPECT_FALSE(refused([](TileListsPlan&) {}));
  EXPECT_TRUE(refused([](TileListsPlan& lists) { lists.tile_queries = 128; }));
  EXPECT_TRUE(refused([](TileListsPlan& lists) { lists.tile_keys = 64; }));
  EXPECT_TRUE(refused([](TileListsPlan& lists) { lists.heads = 1; }));
  EXPECT_TRUE(refused([](TileListsPlan& lists) { lists.heads_of_list = 1; }));
}

}  // namespace
}  // namespace gdpa::families
