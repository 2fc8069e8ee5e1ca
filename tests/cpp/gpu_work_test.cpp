// The work of each slot: the device code that finds it, run on the host and compared with a plain enumeration of tiles.
#include "common/work.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "common/packed_layout.cuh"

namespace gdpa {
namespace {

/// One side of a problem. The other side has one row for each of its entries.
struct Side {
  std::vector<int64_t> offsets;  ///< empty where all entries have `length` rows
  int64_t packed_rows = 0;
  int64_t length = 0;
  int64_t batch = 0;
  int64_t heads = 4;
  int64_t tile = 64;
  int64_t splits = 0;  ///< where the batch shares the rows

  CommonArguments arguments() const {
    CommonArguments result{};
    result.params.batch = batch;
    result.params.heads_q = heads;
    result.params.heads_k = heads / 2;
    if (!offsets.empty()) result.params.queries = Sequences::cumulative(offsets.data(), true);
    result.params.queries.length = length;
    result.params.keys.length = 1;
    result.packed_rows_q = packed_rows;
    result.splits = splits;
    return result;
  }
};

using Tile = std::tuple<int64_t, int, int>;  ///< entry or part, head, tile

/// What a grid of so many CTAs computes: how often each tile.
std::map<Tile, int> computed_by(const Side& side, int64_t grid) {
  const CommonArguments arguments = side.arguments();
  const Owner<PackedLayout> owner{arguments.params.queries, side.packed_rows, side.heads, side.tile,
                                  side.splits > 0 ? side.splits : side.batch};
  std::map<Tile, int> tiles;
  for (int64_t cta = 0; cta < grid; ++cta) {
    for (int64_t slot = cta; slot < owner.heads * owner.slots(); slot += grid) {
      const Work work = find_work(arguments, owner, true, slot);
      if (!work.exists) continue;
      EXPECT_EQ(work.key_head, work.head / 2);
      EXPECT_GE(work.queries.begin, 0);
      if (owner.jagged()) {
        EXPECT_LE(work.queries.begin + work.queries.count, side.packed_rows);
      }
      ++tiles[{work.entry, work.head, work.tile}];
    }
  }
  return tiles;
}

/// The expected tiles: every tile of every entry, of the rows before the first one, and of the rows after the last one,
/// once.
std::map<Tile, int> tiles_of(const Side& side) {
  std::map<Tile, int> tiles;
  const auto add = [&](int64_t entry, int64_t rows) {
    for (int head = 0; head < side.heads; ++head) {
      for (int tile = 0; tile * side.tile < rows; ++tile) tiles[{entry, head, tile}] = 1;
    }
  };
  const int64_t entries = side.splits > 0 ? side.splits : side.batch;
  for (int64_t b = 0; b < entries; ++b) {
    const auto at = static_cast<std::size_t>(b);
    add(b, side.offsets.empty() ? side.length : side.offsets[at + 1] - side.offsets[at]);
  }
  if (!side.offsets.empty()) {
    add(-1, side.offsets.front());
    add(side.batch, side.packed_rows - side.offsets.back());
  }
  return tiles;
}

/// A warp looks up the entry of a slot for a tile. A thread looks it up for rows of dQ.
void expect_that_a_thread_finds_the_entries_of_a_warp(const Side& side) {
  const Owner<PackedLayout> owner{side.arguments().params.queries, side.packed_rows, side.heads, side.tile, side.batch};
  for (int64_t slot = 0; slot < owner.heads * owner.slots(); ++slot) {
    EXPECT_EQ(find_entry_by_thread(owner, slot), find_entry_by_warp(owner, slot)) << "slot " << slot;
  }
}

void expect_every_tile_once(const Side& side) {
  if (!side.offsets.empty()) expect_that_a_thread_finds_the_entries_of_a_warp(side);
  for (const int64_t grid : {1, 3, 132, 100000}) EXPECT_EQ(computed_by(side, grid), tiles_of(side)) << grid << " CTAs";
}

Side jagged(const std::vector<int64_t>& lengths, int64_t tile, int64_t unused_rows = 0, int64_t first = 0) {
  Side side;
  side.tile = tile;
  side.batch = static_cast<int64_t>(lengths.size());
  side.offsets = {first};
  for (const int64_t length : lengths) side.offsets.push_back(side.offsets.back() + length);
  side.packed_rows = side.offsets.back() + unused_rows;
  return side;
}

TEST(GpuWork, EveryTileOfAJaggedBatchIsFoundOnce) {
  expect_every_tile_once(jagged({1, 64, 65, 63, 200}, 64));
  expect_every_tile_once(jagged({1000}, 128));
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<int64_t> lengths(random() % 100 + 1);
    for (int64_t& length : lengths) length = random() % 3 == 0 ? 0 : random() % 300;
    const int64_t after = random() % 2 == 0 ? 0 : random() % 200, before = random() % 2 == 0 ? 0 : random() % 200;
    expect_every_tile_once(jagged(lengths, 16 << random() % 4, after, before));
  }
}

TEST(GpuWork, EntriesWithoutRowsAreNoWork) {
  expect_every_tile_once(jagged({0, 0, 0}, 64));
  expect_every_tile_once(jagged({0, 0, 5, 0, 0, 0, 70, 0}, 64));
  EXPECT_TRUE(computed_by(jagged({0, 0}, 64), 10).empty());
}

TEST(GpuWork, ABatchWithMoreEntriesThanOneRoundOfProbesIsSearched) {
  expect_every_tile_once(jagged(std::vector<int64_t>(5000, 3), 64));
  expect_every_tile_once(jagged(std::vector<int64_t>(1025, 64), 64, 1));
}

TEST(GpuWork, RowsAfterTheLastOffsetAreWorkWithoutKeys) {
  const Side side = jagged({10, 20}, 16, 40);
  expect_every_tile_once(side);
  const CommonArguments arguments = side.arguments();
  const Owner<PackedLayout> owner{arguments.params.queries, side.packed_rows, side.heads, side.tile, side.batch};
  for (int64_t slot = 0; slot < owner.heads * owner.slots(); ++slot) {
    const Work work = find_work(arguments, owner, true, slot);
    if (!work.exists || work.entry != side.batch) continue;
    EXPECT_EQ(work.queries.begin, 30);
    EXPECT_EQ(work.queries.count, 40);
    EXPECT_EQ(work.keys.count, 0);
  }
}

TEST(GpuWork, RowsWithoutASequenceMayBeMoreThan32BitsCount) {
  constexpr int64_t tile = 64, unused = 3'000'000'000;
  const auto expect_tile = [&](const Side& side, int64_t entry, int64_t number, int64_t first, int64_t end) {
    const CommonArguments arguments = side.arguments();
    const Owner<PackedLayout> owner{arguments.params.queries, side.packed_rows, side.heads, side.tile, side.batch};
    const Work work = find_work(arguments, owner, true, owner.first_slot(entry) + number);
    ASSERT_EQ(work.entry, entry);
    ASSERT_TRUE(work.exists) << "tile " << number;
    EXPECT_EQ(work.queries.begin + work.tile * tile, first + number * tile);
    EXPECT_EQ(std::min<int64_t>(work.queries.count - work.tile * tile, tile),
              std::min(end - first - number * tile, tile));
  };
  Side after = jagged({10, 20}, tile, unused), before = jagged({10, 20}, tile, 0, unused);
  after.heads = before.heads = 1;
  constexpr int64_t last = (unused - 1) / tile;
  for (int64_t number = 0; number <= last; number += number < last ? std::min<int64_t>(999'983, last - number) : 1) {
    expect_tile(after, 2, number, 30, 30 + unused);
    expect_tile(before, -1, number, 0, unused);
  }
}

TEST(GpuWork, RowsBeforeTheFirstOffsetAreWorkWithoutKeys) {
  for (const int64_t before : {1, 15, 16, 17, 40}) {
    const Side side = jagged({10, 20}, 16, 3, before);
    expect_every_tile_once(side);
    const CommonArguments arguments = side.arguments();
    const Owner<PackedLayout> owner{arguments.params.queries, side.packed_rows, side.heads, side.tile, side.batch};
    for (int64_t slot = 0; slot < owner.heads * owner.slots(); ++slot) {
      const Work work = find_work(arguments, owner, true, slot);
      if (!work.exists || work.entry >= 0) continue;
      EXPECT_EQ(work.queries.begin, 0);
      EXPECT_EQ(work.queries.count, before);
      EXPECT_EQ(work.keys.count, 0);
    }
  }
}

TEST(GpuWork, OffsetsThatFallOrRunPastTheEndGiveNoTileTwiceAndNoRowOutside) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    Side side = jagged(std::vector<int64_t>(random() % 70 + 1, 50), 16 << random() % 4, random() % 100);
    for (int64_t& offset : side.offsets) {
      if (random() % 4 == 0) offset = static_cast<int64_t>(random() % 8000) - 2000;
    }
    for (const auto& [tile, count] : computed_by(side, 7)) EXPECT_EQ(count, 1);
  }
}

TEST(GpuWork, EveryTileOfADenseBatchIsFoundOnce) {
  for (const int64_t length : {1, 63, 64, 65, 1000}) {
    Side side;
    side.length = length;
    side.batch = 7;
    side.packed_rows = length * side.batch;
    expect_every_tile_once(side);
  }
}

TEST(GpuWork, ASharedSideIsWorkOfEachSplitAndTheSplitsAreTheBatch) {
  Side side;
  side.length = 100;
  side.batch = 10;
  side.splits = 3;
  expect_every_tile_once(side);
  const CommonArguments arguments = side.arguments();
  const Owner<PackedLayout> owner{arguments.params.queries, 0, side.heads, side.tile, side.splits};
  std::map<int64_t, std::pair<int64_t, int64_t>> splits;
  for (int64_t slot = 0; slot < owner.heads * owner.slots(); ++slot) {
    const Work work = find_work(arguments, owner, true, slot);
    splits[work.entry] = {work.batch_begin, work.batch_end};
  }
  int64_t next = 0;
  for (const auto& [part, range] : splits) {
    EXPECT_EQ(range.first, next);
    EXPECT_GT(range.second, range.first);
    next = range.second;
  }
  EXPECT_EQ(next, side.batch);
}

/// The first slots of CTAs, for a batch whose entries have the same number of queries, and keys with these offsets.
std::vector<int64_t> first_slots_of(const Side& queries, const std::vector<int64_t>& key_offsets, int64_t rows_per_slot,
                                    int64_t ctas) {
  CommonArguments arguments = queries.arguments();
  arguments.params.keys = Sequences::cumulative(key_offsets.data(), true);
  arguments.packed_rows_k = key_offsets.back();
  const Owner<PackedLayout> owner{arguments.params.queries, 0, queries.heads, queries.tile, queries.batch};
  std::vector<int64_t> first;
  for (int64_t cta = 0; cta <= ctas; ++cta) {
    first.push_back(first_slot_of_cta(arguments, owner, rows_per_slot, cta, ctas));
  }
  return first;
}

TEST(GpuWork, EveryCtaHasTheSameNumberOfKeys) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    Side queries;
    queries.length = 1 + static_cast<int64_t>(random() % 200);
    queries.batch = 1 + static_cast<int64_t>(random() % 300);
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < queries.batch; ++b) lengths.push_back(static_cast<int64_t>(random() % 2048));
    const Side keys = jagged(lengths, 128);
    constexpr int64_t rows_per_slot = 128, ctas = 132;
    const std::vector<int64_t> first = first_slots_of(queries, keys.offsets, rows_per_slot, ctas);
    const int64_t each = queries.heads * ((queries.length + queries.tile - 1) / queries.tile);
    EXPECT_EQ(first.front(), 0);
    EXPECT_EQ(first.back(), each * queries.batch);
    const auto cost_before = [&](int64_t slot) {
      const auto entry = static_cast<std::size_t>(slot / each);
      const int64_t within = entry < lengths.size() ? (lengths[entry] + rows_per_slot) * (slot % each) : 0;
      return (keys.offsets[entry] + static_cast<int64_t>(entry) * rows_per_slot) * each + within;
    };
    const int64_t fair = cost_before(first.back()) / ctas;
    for (std::size_t cta = 0; cta < ctas; ++cta) {
      const int64_t cost = cost_before(first[cta + 1]) - cost_before(first[cta]);
      EXPECT_LE(std::abs(cost - fair), 2048 + rows_per_slot + each) << cta;
    }
  }
}

TEST(GpuWork, CtasOfKeyOffsetsThatFallStayAmongTheSlots) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    Side queries;
    queries.length = 70;
    queries.batch = 20;
    std::vector<int64_t> offsets;
    for (int64_t b = 0; b <= queries.batch; ++b) offsets.push_back(static_cast<int64_t>(random() % 8000) - 2000);
    for (const int64_t slot : first_slots_of(queries, offsets, 128, 7)) {
      EXPECT_GE(slot, 0);
      EXPECT_LE(slot, queries.heads * 2 * queries.batch);
    }
  }
}

TEST(GpuWork, SequencesWithGapsHaveTheirTilesInAnyOrder) {
  const std::vector<int64_t> begins = {300, 0, 100, 90}, ends = {370, 65, 165, 90}, sums = {0, 70, 135, 200, 200};
  const std::array<int64_t, 4> counts = {70, 65, 65, 0};
  Side side;
  side.batch = 4;
  side.heads = 2;
  CommonArguments arguments = side.arguments();
  Sequences& queries = arguments.params.queries;
  queries.begins = {begins.data(), 1, true};
  queries.ends = {ends.data(), 1, true};
  queries.rows_before = sums.data();
  arguments.packed_rows_q = 400;
  const Owner<PackedLayout> owner{queries, 400, side.heads, side.tile, side.batch};
  std::map<Tile, Rows> tiles;
  for (int64_t slot = 0; slot < owner.heads * owner.slots(); ++slot) {
    const Work work = find_work(arguments, owner, true, slot);
    if (work.exists) tiles[{work.entry, work.head, work.tile}] = work.queries;
  }
  ASSERT_EQ(tiles.size(), 12U);  // of 2 heads: 2 tiles for each of the entries 0 to 2
  for (const auto& [tile, rows] : tiles) {
    const auto entry = static_cast<std::size_t>(std::get<0>(tile));
    EXPECT_EQ(rows.begin, begins[entry]);
    EXPECT_EQ(rows.count, counts[entry]);
  }
}

}  // namespace
}  // namespace gdpa
