// Where tiles of keys stand in the table of the Hopper backward if they wait for each other: the device code that says
// so, run on the host.
#include "hopper/head_groups.cuh"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "common/packed_layout.cuh"
#include "common/window_mask.cuh"

namespace gdpa::hopper {
namespace {

constexpr int64_t tile_keys = 128;

/// A jagged batch, and where the tiles of keys of each head stand, by entry and head.
struct Batch {
  std::vector<int64_t> offsets = {0};
  int64_t table_size = 0;
  std::map<std::pair<int64_t, int>, std::vector<int64_t>> slots;

  Batch(const std::vector<int64_t>& lengths, int64_t heads, int whole_keys, int64_t heads_per_group,
        bool by_heads = false) {
    for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
    CommonArguments arguments{};
    arguments.params.batch = static_cast<int64_t>(lengths.size());
    arguments.params.heads_q = arguments.params.heads_k = heads;
    arguments.params.queries.length = 1;
    arguments.params.keys = Sequences::cumulative(offsets.data(), true);
    arguments.packed_rows_k = offsets.back();
    const Owner<PackedLayout> owner{arguments.params.keys, offsets.back(), heads, tile_keys, arguments.params.batch};
    table_size = heads * owner.slots();
    for (int64_t slot = 0; slot < table_size; ++slot) {
      const Work work = find_work(arguments, owner, false, slot);
      if (!work.exists) continue;
      slots[{work.entry, work.head}].push_back(
          slot_in_head_group<WindowMask>(arguments, whole_keys, heads_per_group, owner, work, by_heads));
    }
  }
};

std::vector<int64_t> drawn_lengths(std::mt19937& random, unsigned most) {
  std::vector<int64_t> lengths(random() % 100 + 1);
  for (int64_t& length : lengths) length = random() % 4 == 0 ? 0 : random() % most;
  return lengths;
}

TEST(HopperWindows, EveryTileHasAPlaceOfItsOwnAndThoseOfAHeadFollowEachOtherInTheOrderInWhichTheyAdd) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int64_t heads = std::vector<int64_t>{1, 2, 4, 7, 33}[random() % 5];
    const auto whole_keys = static_cast<int>(random() % 5 * tile_keys);
    const Batch batch(drawn_lengths(random, 2000), heads, whole_keys, static_cast<int64_t>(random() % 64 + 1),
                      random() % 3 == 0);
    std::map<int64_t, int> taken;
    for (const auto& [head, slots] : batch.slots) {
      for (std::size_t i = 0; i < slots.size(); ++i) {
        ++taken[slots[i]];
        if (i == 0) continue;
        const bool rise = static_cast<int64_t>(slots.size()) * tile_keys <= whole_keys;
        EXPECT_EQ(slots[i - 1] < slots[i], rise);
      }
    }
    for (const auto& [slot, count] : taken) {
      EXPECT_EQ(count, 1) << slot;
      EXPECT_GE(slot, 0);
      EXPECT_LT(slot, batch.table_size);
    }
  }
}

TEST(HopperWindows, ByHeadsTheTilesOfAHeadOfAllEntriesStandTogether) {
  const Batch batch(std::vector<int64_t>(64, 2048), 4, 256, 8, true);
  const int64_t slots_of_head = batch.table_size / 4;
  for (const auto& [head, slots] : batch.slots) {
    for (const int64_t slot : slots) EXPECT_EQ(slot / slots_of_head, head.second);
    for (std::size_t i = 1; i < slots.size(); ++i) EXPECT_EQ(slots[i - 1] - slots[i], 8);
  }
}

TEST(HopperWindows, TheTilesOfAHeadStandAWindowApart) {
  for (const int64_t heads_per_group : {1, 2, 4, 8, 16, 32}) {
    const Batch batch(std::vector<int64_t>(64, 2048), 4, 256, heads_per_group);
    for (const auto& [head, slots] : batch.slots) {
      ASSERT_EQ(slots.size(), 16);
      for (std::size_t i = 1; i < slots.size(); ++i) EXPECT_EQ(slots[i - 1] - slots[i], heads_per_group);
    }
  }
}

TEST(HopperWindows, TilesThatOneCtaTakesStandSideBySide) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const Batch batch(drawn_lengths(random, 900), 3, 512, 32);
    for (const auto& [head, slots] : batch.slots) {
      const auto entry = static_cast<std::size_t>(head.first);
      if (batch.offsets[entry + 1] - batch.offsets[entry] > 512) continue;
      for (std::size_t i = 1; i < slots.size(); ++i) EXPECT_EQ(slots[i], slots[i - 1] + 1);
    }
  }
}

}  // namespace
}  // namespace gdpa::hopper
