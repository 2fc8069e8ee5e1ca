// Which tiles a CTA of the Hopper forward gets: the device code that finds them, run on the host, against a plain
// enumeration. Every tile once, in each pass over them, and as much for each CTA.
#include "warp.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "common/packed_layout.cuh"
#include "pipeline/tile_range.cuh"

namespace gdpa::pipeline {
namespace {

struct Config {
  using Layout = PackedLayout;
  static constexpr int tile_queries = 128;
  static constexpr int tile_keys = 64;
};

constexpr TileOrder all_orders[] = {TileOrder::strided, TileOrder::contiguous, TileOrder::dynamic};

struct Lengths {
  std::vector<int64_t> lengths_q, lengths_k, offsets_q = {0}, offsets_k = {0};
  bool dense = false;  ///< all entries are as long as the first
  int64_t unused_rows = 0;
  int heads = 4;
  TileOrder order = TileOrder::strided;
  unsigned tiles_taken = 0;

  QueryMajorArguments arguments() {
    for (const int64_t length : lengths_q) offsets_q.push_back(offsets_q.back() + length);
    for (const int64_t length : lengths_k) offsets_k.push_back(offsets_k.back() + length);
    QueryMajorArguments result{};
    Params& params = result.common.params;
    params.batch = static_cast<int64_t>(lengths_q.size());
    params.heads_q = heads;
    params.heads_k = heads / 2;
    result.tiles.order = order;
    result.tiles_taken = &tiles_taken;
    if (dense) {
      params.queries.length = lengths_q[0];
      params.keys.length = lengths_k[0];
      return result;
    }
    params.queries = Sequences::cumulative(offsets_q.data(), true);
    params.keys = Sequences::cumulative(offsets_k.data(), true);
    result.common.packed_rows_q = offsets_q.back() + unused_rows;
    result.common.packed_rows_k = offsets_k.back();
    return result;
  }
};

using TileOfHead = std::tuple<int64_t, int, int>;  ///< entry, head, tile

struct Assigned {
  std::map<TileOfHead, int> tiles;     ///< how often each
  std::vector<int64_t> counts, costs;  ///< of each CTA
};

Assigned assign(Lengths problem, unsigned ctas, int passes = 1) {
  const QueryMajorArguments arguments = problem.arguments();
  Assigned assigned;
  for (unsigned cta = 0; cta < ctas; ++cta) {
    constexpr unsigned warps = 3, at_once = 16;
    WorkTotals totals[warps];
    TileRange tile_range;
    std::vector<std::vector<Work>> found(at_once);
    warp::run(cta, ctas, warps, [&](unsigned thread) {
      find_tile_range<Config, warps * 32>(arguments, totals, tile_range);
      __syncthreads();
      if (thread >= 32) return;
      for (int pass = 0; pass < passes; ++pass) {
        TileIterator<Config> tiles(arguments, tile_range);
        for (unsigned count = 1;; count = std::min(2 * count, at_once)) {
          const Work work = tiles.take(count);
          if (__ballot_sync(~0u, work.exists) == 0) break;
          if (thread < at_once && work.exists) found[thread].push_back(work);
        }
      }
    });
    int64_t count = 0, cost = 0;
    for (const auto& of_lane : found) {
      for (const Work& work : of_lane) {
        ++assigned.tiles[{work.batch_begin, work.head, work.tile}];
        EXPECT_EQ(work.key_head, work.head / 2);
        const auto b = static_cast<std::size_t>(work.batch_begin);
        const bool is_unused = b == problem.lengths_q.size();
        EXPECT_EQ(work.queries.count, is_unused ? problem.unused_rows : problem.lengths_q[b]);
        EXPECT_EQ(work.keys.count, is_unused ? 0 : problem.lengths_k[b]);
        ++count;
        cost += (work.keys.count + Config::tile_keys - 1) / Config::tile_keys + 1;
      }
    }
    assigned.counts.push_back(count);
    assigned.costs.push_back(cost);
  }
  return assigned;
}

std::map<TileOfHead, int> tiles_of(const Lengths& problem, int times = 1) {
  std::map<TileOfHead, int> tiles;
  const auto add = [&](std::size_t entry, int64_t rows) {
    for (int head = 0; head < problem.heads; ++head) {
      for (int tile = 0; tile * Config::tile_queries < rows; ++tile) {
        tiles[{static_cast<int64_t>(entry), head, tile}] = times;
      }
    }
  };
  for (std::size_t b = 0; b < problem.lengths_q.size(); ++b) add(b, problem.lengths_q[b]);
  add(problem.lengths_q.size(), problem.unused_rows);
  return tiles;
}

Lengths random_problem(std::mt19937& random, std::size_t batch, unsigned longest) {
  Lengths problem;
  for (std::size_t b = 0; b < batch; ++b) {
    problem.lengths_q.push_back(static_cast<int64_t>(random() % 4 == 0 ? 0 : random() % longest));
    problem.lengths_k.push_back(static_cast<int64_t>(random() % 4 == 0 ? 0 : random() % longest));
  }
  problem.unused_rows = static_cast<int64_t>(random() % 2 == 0 ? 0 : random() % 400);
  problem.order = all_orders[random() % std::size(all_orders)];
  return problem;
}

TEST(HopperTileRange, EveryTileIsDealtOnce) {
  std::mt19937 random(1);
  for (const std::size_t batch : {1, 2, 31, 32, 33, 100}) {
    for (int round = 0; round < 2; ++round) {
      const Lengths problem = random_problem(random, batch, 700);
      EXPECT_EQ(assign(problem, static_cast<unsigned>(1 + random() % 7)).tiles, tiles_of(problem))
          << batch << " entries";
    }
  }
}

TEST(HopperTileRange, EveryTileOfManyEntriesIsDealtOnce) {
  std::mt19937 random(4);
  for (const TileOrder order : all_orders) {
    Lengths problem = random_problem(random, 5000, 200);
    problem.heads = 2;
    problem.order = order;
    EXPECT_EQ(assign(problem, 5).tiles, tiles_of(problem));
  }
}

TEST(HopperTileRange, EmptyEntriesInARowAreNoWork) {
  std::mt19937 random(5);
  Lengths problem = random_problem(random, 500, 300);
  std::fill(problem.lengths_q.begin(), problem.lengths_q.begin() + 150, 0);
  std::fill(problem.lengths_q.begin() + 200, problem.lengths_q.begin() + 350, 0);
  std::fill(problem.lengths_q.begin() + 400, problem.lengths_q.end(), 0);
  for (const TileOrder order : all_orders) {
    for (const int64_t unused_rows : {0, 1000}) {
      problem.order = order;
      problem.unused_rows = unused_rows;
      EXPECT_EQ(assign(problem, 6).tiles, tiles_of(problem)) << unused_rows << " unused rows";
    }
  }
}

TEST(HopperTileRange, EveryTileOfADenseBatchIsDealtOnce) {
  Lengths problem;
  problem.dense = true;
  problem.lengths_q.assign(10, 300);
  problem.lengths_k.assign(10, 100);
  for (const TileOrder order : all_orders) {
    problem.order = order;
    EXPECT_EQ(assign(problem, 7).tiles, tiles_of(problem));
  }
}

TEST(HopperTileRange, ASecondPassDealsTheSameTiles) {
  std::mt19937 random(6);
  Lengths problem = random_problem(random, 100, 400);
  for (const TileOrder order : {TileOrder::strided, TileOrder::contiguous}) {
    problem.order = order;
    EXPECT_EQ(assign(problem, 3, 2).tiles, tiles_of(problem, 2));
  }
}

TEST(HopperTileRange, CtasGetAsManyTilesEachWhateverLengthsAre) {
  std::mt19937 random(2);
  Lengths problem = random_problem(random, 200, 500);
  problem.order = TileOrder::strided;
  const Assigned assigned = assign(problem, 12);
  const auto [least, most] = std::minmax_element(assigned.counts.begin(), assigned.counts.end());
  EXPECT_LE(*most - *least, 1);
}

TEST(HopperTileRange, RunsMeetAsManyKeysEachToATile) {
  std::mt19937 random(3);
  for (const std::size_t batch : {1, 20, 200, 1000}) {
    Lengths problem = random_problem(random, batch, 500);
    problem.lengths_q[0] = 100000 / static_cast<int64_t>(batch);  // some work in any case
    problem.order = TileOrder::contiguous;
    problem.unused_rows = 0;
    const Assigned assigned = assign(problem, 12);
    const auto [least, most] = std::minmax_element(assigned.costs.begin(), assigned.costs.end());
    EXPECT_LE(*most - *least, 2 * (500 / Config::tile_keys + 2)) << batch << " entries";
  }
}

TEST(HopperTileRange, ABatchWithoutRowsIsNoWork) {
  Lengths problem;
  problem.lengths_q = problem.lengths_k = {0, 0, 0};
  for (const TileOrder order : all_orders) {
    problem.order = order;
    EXPECT_TRUE(assign(problem, 3).tiles.empty());
  }
}

}  // namespace
}  // namespace gdpa::pipeline
