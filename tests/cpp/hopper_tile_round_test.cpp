// The rounds of Hopper's tile scheduler: every tile enters the queue once, in order, and K and V stay in shared memory
// between neighbouring tiles with the same keys, within a round and from one round to the next.
#include "pipeline/tile_round.cuh"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace gdpa::pipeline {
namespace {

constexpr unsigned at_once = 16;

/// A tile in the queue.
struct Queued {
  int tile;
  bool loads_keys, keeps_keys;
};

/// Plays the scheduler. `keys` has the keys of each tile, or -1 for a tile without keys.
std::vector<Queued> schedule(const std::vector<int>& keys, bool looks_ahead) {
  std::vector<Queued> queue;
  unsigned reuses = 0;
  for (std::size_t next = 0; next < keys.size();) {
    unsigned found = 0, with_keys = 0, reusing = 0;
    int previous = -1;
    for (unsigned lane = 0; lane < at_once && next + lane < keys.size(); ++lane) {
      found |= 1u << lane;
      const int of_lane = keys[next + lane];
      if (of_lane < 0) continue;
      with_keys |= 1u << lane;
      if (of_lane == previous) reusing |= 1u << lane;
      previous = of_lane;
    }
    const TileRound round = tile_round(at_once, found, with_keys, reusing, looks_ahead, reuses);
    for (unsigned lane = 0; lane < at_once; ++lane) {
      if ((round.queued() >> lane & 1) == 0) continue;
      const int of_lane = static_cast<int>(lane);
      queue.push_back({static_cast<int>(next) + of_lane, round.loads_keys(of_lane), round.keeps_keys(of_lane)});
    }
    reuses = round.next_reuses;
    next += at_once - (round.gives_back ? 1 : 0);
  }
  return queue;
}

std::vector<int> tiles_with_keys(const std::vector<int>& keys) {
  std::vector<int> tiles;
  for (std::size_t tile = 0; tile < keys.size(); ++tile) {
    if (keys[tile] >= 0) tiles.push_back(static_cast<int>(tile));
  }
  return tiles;
}

/// Tiles in runs with the same keys, some of them without keys.
std::vector<int> random_tiles(std::mt19937& random, bool some_without_keys) {
  std::vector<int> keys;
  for (int run = 0; run < 20; ++run) {
    const bool is_empty = some_without_keys && random() % 4 == 0;
    keys.insert(keys.end(), 1 + random() % 40, is_empty ? -1 : run);
  }
  return keys;
}

TEST(HopperTileRound, EveryTileWithKeysEntersTheQueueOnceAndInOrder) {
  std::mt19937 random(1);
  for (int problem = 0; problem < 100; ++problem) {
    const std::vector<int> keys = random_tiles(random, true);
    for (const bool looks_ahead : {false, true}) {
      std::vector<int> queued;
      for (const Queued& tile : schedule(keys, looks_ahead)) queued.push_back(tile.tile);
      EXPECT_EQ(queued, tiles_with_keys(keys));
    }
  }
}

TEST(HopperTileRound, ATileUsesKeysAgainExactlyIfTheTileBeforeKeepsThem) {
  std::mt19937 random(2);
  for (int problem = 0; problem < 100; ++problem) {
    const std::vector<int> keys = random_tiles(random, true);
    for (const bool looks_ahead : {false, true}) {
      const std::vector<Queued> queue = schedule(keys, looks_ahead);
      bool keeps = false;
      int before = -1;
      for (const Queued& tile : queue) {
        const int of_tile = keys[static_cast<std::size_t>(tile.tile)];
        EXPECT_EQ(tile.loads_keys, !keeps) << "tile " << tile.tile;
        if (!tile.loads_keys) {
          EXPECT_EQ(of_tile, before) << "tile " << tile.tile;
        }
        keeps = tile.keeps_keys;
        before = of_tile;
      }
      EXPECT_FALSE(keeps) << "the last tile";
    }
  }
}

TEST(HopperTileRound, KeysOfManyTilesAreLoadedOnce) {
  std::mt19937 random(3);
  for (int problem = 0; problem < 100; ++problem) {
    const std::vector<int> keys = random_tiles(random, false);
    int loads = 0;
    for (const Queued& tile : schedule(keys, true)) loads += tile.loads_keys;
    EXPECT_EQ(loads, 20) << "one for each run of tiles";
  }
}

}  // namespace
}  // namespace gdpa::pipeline
