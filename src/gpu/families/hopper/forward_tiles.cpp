// See forward_tiles.h.
#include "gpu/families/hopper/forward_tiles.h"

#include <algorithm>
#include <numeric>

#include "expression/lookup.h"
#include "gpu/thresholds.h"

namespace gdpa::gpu {
namespace {

static_assert(thresholds::queries_of_one_warpgroup == hopper::warpgroup_rows);

int widest(const HopperForward& kernel) { return std::max(kernel.head_dim, kernel.head_dim_v); }

/// The limits of a forward tile: shared memory, and the registers of a thread in a warpgroup that holds 64 rows of each
/// operand.
struct ForwardTile {
  const HopperForward& kernel;
  const StagedReads& reads;

  int operand_registers() const {
    const int query = kernel.query_in_registers ? round_up(kernel.head_dim, 16) / 4 : 0;
    const int scores = kernel.tile_keys / 2, p = kernel.tile_keys / 4;
    return query + scores + p + hopper::output_columns(kernel.head_dim_v) / 2;
  }

  int shared_bytes() const {
    constexpr int block_columns = 64, queue_and_barriers = 3072;
    const int columns = round_up(kernel.head_dim, block_columns),
              columns_v = round_up(kernel.head_dim_v, block_columns);
    const int query = kernel.query_in_registers ? std::max(columns, columns_v) : columns;  // O is staged there
    // The inputs of a column or a difference have at most 16 bytes for each read.
    const int lines = reads.of_lines * (kernel.tile_keys + 16) * 16;
    constexpr int rows = 16;  // of StagedTile
    const int tile = rows * staged_row_bytes(kernel.bias_tile, kernel.tile_keys * reads.bias.element_bytes);
    const int lookups = kernel.stages_lookups ? lookup_bytes(reads.lookups, kernel.tile_keys) : 0;
    const int inputs = kernel.warps * (lines + tile + lookups);
    return (kernel.query_stages * kernel.tile_queries * query +
            kernel.stages * kernel.tile_keys * (columns + columns_v)) *
               bytes_of(kernel.element) +
           queue_and_barriers + inputs;
  }
  bool has_shared_memory() const { return shared_bytes() <= hopper_shared_kilobytes * 1024; }

  bool fits() const {
    // The compiler needs 32 of the 224 registers for everything else, and more where both Q and 256 columns of O are in
    // registers.
    const bool has_room = !kernel.query_in_registers || hopper::output_columns(kernel.head_dim_v) < 256;
    return has_room && operand_registers() <= 192 && has_shared_memory();
  }
};

/// Sets the largest tile_keys that fits, at most `most`. Returns false where not even 64 keys fit.
bool choose_tile_keys(HopperForward& kernel, bool query_in_registers, int most, const StagedReads& reads) {
  kernel.query_in_registers = query_in_registers;
  for (kernel.tile_keys = most; kernel.tile_keys >= 64; kernel.tile_keys -= 16) {
    if (ForwardTile{kernel, reads}.fits()) return true;
  }
  return false;
}

/// Q in registers if it fits, then the largest tile of keys with two stages, then more stages. Returns false if not
/// even 64 keys fit.
bool choose_wide_tiles(HopperForward& kernel, int most_keys, const StagedReads& reads) {
  kernel.stages = 2;
  kernel.query_stages = 1;
  if (!choose_tile_keys(kernel, true, most_keys, reads) && !choose_tile_keys(kernel, false, most_keys, reads)) {
    return false;
  }
  for (int* const stages : {&kernel.stages, &kernel.query_stages}) {
    ++*stages;
    if (!ForwardTile{kernel, reads}.fits()) --*stages;
  }
  return true;
}

/// Reduces the stages that choose_forward_tiles() prefers to those that fit. Two stages of each operand suffice.
/// Returns false if they do not fit.
bool reduce_stages(HopperForward& kernel, const StagedReads& reads) {
  // The inputs of a tile take about as much memory as a stage of Q, and Q needs its stages less.
  int* const of_keys = &kernel.stages;
  int* const of_queries = &kernel.query_stages;
  const bool has_inputs = kernel.bias_tile != BiasTile::none || kernel.stages_lookups;
  for (int* const stages : {has_inputs ? of_queries : of_keys, has_inputs ? of_keys : of_queries}) {
    while (*stages > 2 && !ForwardTile{kernel, reads}.has_shared_memory()) --*stages;
  }
  return ForwardTile{kernel, reads}.has_shared_memory();
}

/// Calls choose(kernel) with the elements of a dense bias or of lookups in shared memory, and without them if this
/// returns false.
template <class Choose>
void stage_if_it_fits(HopperForward& kernel, const StagedReads& reads, const Choose& choose) {
  HopperForward staged = kernel;
  staged.bias_tile = reads.bias.tile;
  staged.stages_lookups = reads.lookups > 0;
  if ((reads.bias.tile != BiasTile::none || reads.lookups > 0) && choose(staged)) {
    kernel = staged;
  } else {
    choose(kernel);
  }
}

}  // namespace

bool takes_narrow_tiles(int reads) { return reads > 1; }

void choose_forward_tiles(int64_t most_queries, int64_t mean_keys, const StagedReads& reads, HopperForward& kernel) {
  const bool is_narrow = widest(kernel) <= 64;
  const bool are_few = mean_keys <= (is_narrow ? thresholds::few_keys_of_narrow_heads : thresholds::few_keys);
  const bool is_wide = widest(kernel) > 128;
  const int warpgroups = !is_wide && most_queries <= thresholds::queries_of_one_warpgroup ? 1 : 2;
  kernel.tile_queries = warpgroups * hopper::warpgroup_rows;
  kernel.warps = warpgroups * 4;
  const int most_keys = !takes_narrow_tiles(reads.all) ? (is_narrow ? 192 : 128) : is_wide ? 64 : is_narrow ? 96 : 112;
  if (is_wide) {
    stage_if_it_fits(kernel, reads, [&](HopperForward& of) { return choose_wide_tiles(of, most_keys, reads); });
    return;
  }
  kernel.query_in_registers = true;
  stage_if_it_fits(kernel, reads, [&](HopperForward& of) {
    of.tile_keys = !are_few ? most_keys : mean_keys <= thresholds::keys_of_a_short_tile ? 64 : std::min(128, most_keys);
    if (warpgroups == 1) {
      // Consecutive tiles seldom have the same keys: as many stages as fit.
      of.stages = is_narrow || of.tile_keys == 64 ? 4 : 3;
      of.query_stages = 2;
    } else {
      of.stages = !are_few ? (is_narrow ? 3 : 2) : is_narrow || of.tile_keys == 64 ? 4 : 2;
      of.query_stages = 3;
      // K and V stay in three stages, for which Q gives up two stages. With a dense bias or lookups, three stages do
      // not fit.
      constexpr int three = 3, keys_of_a_stage = thresholds::keys_of_three_stages / three;
      const bool has_inputs = of.bias_tile != BiasTile::none || of.stages_lookups;
      const bool stays_in_three =
          !are_few && mean_keys <= thresholds::keys_of_three_stages && of.tile_keys == keys_of_a_stage;
      if (stays_in_three && !has_inputs) {
        of.stages = three;
        of.query_stages = 1;
      }
    }
    if (of.bias_tile == BiasTile::none && !of.stages_lookups) return reduce_stages(of, reads);
    // The addresses of the copies need registers: 192 keys would spill. 32-bit elements have the room of twice the
    // keys.
    for (int keys = std::min(of.tile_keys, 128); keys >= 64; keys -= 16) {
      HopperForward tried = of;
      tried.tile_keys = keys;
      if (!reduce_stages(tried, reads)) continue;
      of = tried;
      return true;
    }
    return false;
  });
}

void choose_boxes(int64_t page_rows, HopperForward& kernel) {
  constexpr int most_boxes = 8;
  const auto box = [&] { return static_cast<int>(std::gcd(page_rows, int64_t{kernel.tile_keys})); };
  while (kernel.tile_keys > most_boxes * box()) kernel.tile_keys -= least_page_rows;
  kernel.box_keys = box();
}

}  // namespace gdpa::gpu
