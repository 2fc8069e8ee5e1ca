// The plan of the lists of partner tiles of a mask expression: which lists a call has, where they lie, and which
// prepared lists its kernels can read. No GPU is needed.
#include "gpu/tile_lists.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gdpa/error.h"
#include "gpu_calls.h"

namespace gdpa::gpu {
namespace {

using plan::TileListsPlan;
using Names = std::vector<std::string>;

constexpr int tile_queries = 64, tile_keys = 128;

Problem problem_with_mask() {
  Problem problem;
  problem.direction = Direction::backward;
  problem.dtype = DType::bfloat16;
  problem.batch = 3;
  problem.rows_q = problem.rows_k = 5000;
  problem.heads_q = 6;
  problem.heads_k = 2;
  problem.head_dim = problem.head_dim_v = 64;
  problem.has_mask_expression = problem.mask_depends_on_head = true;
  return problem;
}

/// A kernel of a plan.
struct Reader {
  bool reads_query_lists;
  int keys = tile_keys;
};
constexpr Reader backward{true}, forward{false};

/// A plan with lists for these kernels, and the launches that write them.
GpuPlan plan_with(const std::vector<Reader>& readers, const Problem& problem = problem_with_mask()) {
  GpuPlan plan;
  for (const Reader& reader : readers) {
    lists_of_tiles(problem, tile_queries, reader.keys, reader.reads_query_lists, plan);
  }
  const Params params;
  const Activation activation(plain);
  place_tile_lists({problem, params, activation.function(), {}}, plan, plan.launches);
  return plan;
}

/// The message of the refusal to run a kernel with prepared lists. Empty if the kernel can read them.
std::string refusal_of(const Reader& reader, const TileListsPlan& prepared) {
  plan::PreparedTiles tiles;
  tiles.lists = {prepared};
  Problem problem = problem_with_mask();
  problem.prepared = std::make_shared<plan::PreparedTiles>(tiles);
  try {
    EXPECT_TRUE(plan_with({reader}, problem).launches.empty()) << "the lists are there";
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TileListsPlan, KernelsOfOneTileSizeShareListsInEitherOrder) {
  for (const std::vector<Reader>& readers : {std::vector{backward, forward}, std::vector{forward, backward}}) {
    const GpuPlan plan = plan_with(readers);
    ASSERT_EQ(plan.tile_lists.size(), 1U);
    EXPECT_TRUE(plan.tile_lists[0].has_query_lists) << "backward reads them";
    EXPECT_EQ(names_of(plan), (Names{"locate_lists", "list_key_tiles", "list_query_tiles"}));
  }
}

TEST(TileListsPlan, ForwardHasNoListsOfQueryTiles) {
  const GpuPlan plan = plan_with({forward});
  ASSERT_EQ(plan.tile_lists.size(), 1U);
  EXPECT_FALSE(plan.tile_lists[0].has_query_lists);
  EXPECT_EQ(names_of(plan), (Names{"locate_lists", "list_key_tiles"}));
}

TEST(TileListsPlan, AKernelReadsTheListsOfItsTilesAndThoseOfQueryTilesIfItOwnsKeys) {
  Problem problem = problem_with_mask();
  const auto expect_lists = [](const GpuPlan& plan, const auto& kernel, bool of_queries) {
    ASSERT_LT(static_cast<std::size_t>(kernel.tile_lists), plan.tile_lists.size());
    const TileListsPlan& lists = plan.tile_lists[static_cast<std::size_t>(kernel.tile_lists)];
    EXPECT_TRUE(lists.is_of(kernel.tile_queries, kernel.tile_keys));
    EXPECT_EQ(lists.has_query_lists, of_queries) << Kernel(kernel).description();
  };
  for (const bool has_tensor_maps : {true, false}) {
    for (const bool has_gaps : {true, false}) {
      problem.has_key_gaps = has_gaps;
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        problem.direction = direction;
        const GpuPlan plan = TestCall{.problem = problem, .has_tensor_maps = has_tensor_maps}.plan();
        const bool owns_keys = direction == Direction::backward;
        for (const Launch* const launch : kernels_of(plan)) {
          visit_as<HopperForward, PortableForward, PortableBackward>(
              launch->kernel(), [&](const auto& kernel) { expect_lists(plan, kernel, owns_keys); });
          visit_as<PortableBackwardQuery>(launch->kernel(),
                                          [&](const auto& kernel) { expect_lists(plan, kernel, false); });
        }
        for (const HopperBackwardKernel& kernel : hopper_backward_kernels(plan)) {
          EXPECT_TRUE(plan.tile_lists[static_cast<std::size_t>(kernel.tile_lists)].has_query_lists);
        }
      }
    }
  }
}

/// TileLists describes the lists: an element for each tile of keys, and two for each tile of queries.
TEST(TileListsPlan, TheArraysOfAllListsLieOneBehindTheOther) {
  const GpuPlan plan = plan_with({backward, Reader{false, 64}});
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
  EXPECT_GE(plan.workspace.bytes(), end);
}

TEST(TileListsPlan, PreparedListsOfBackwardAreForForwardTooAndNotTheOtherWay) {
  const TileListsPlan of_backward = plan_with({backward}).tile_lists[0],
                      of_forward = plan_with({forward}).tile_lists[0];
  EXPECT_EQ(refusal_of(backward, of_backward), "");
  EXPECT_EQ(refusal_of(forward, of_backward), "");
  EXPECT_EQ(refusal_of(forward, of_forward), "");
  EXPECT_NE(refusal_of(backward, of_forward).find("and for backward if it is one"), std::string::npos);
}

TEST(TileListsPlan, PreparedListsOfOtherTilesOrHeadsAreRefused) {
  const GpuPlan plan = plan_with({forward});
  const auto refused = [&](auto change) {
    TileListsPlan lists = plan.tile_lists[0];
    change(lists);
    return !refusal_of(forward, lists).empty();
  };
  EXPECT_FALSE(refused([](TileListsPlan&) {}));
  EXPECT_TRUE(refused([](TileListsPlan& lists) { lists.tile_queries = 128; }));
  EXPECT_TRUE(refused([](TileListsPlan& lists) { lists.tile_keys = 64; }));
  EXPECT_TRUE(refused([](TileListsPlan& lists) { lists.heads = 1; }));
  EXPECT_TRUE(refused([](TileListsPlan& lists) { lists.heads_of_list = 1; }));
}

}  // namespace
}  // namespace gdpa::gpu
