// The plan of forward on Hopper: the tile of the kernel, and how CTAs take the tiles. docs/notebook/hopper-forward.md
// has the measurements.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "expression/lookup.h"
#include "gpu/families/hopper/plans.h"
#include "gpu/families/hopper/reads.h"
#include "gpu/kernels/add_rows.h"
#include "gpu/kernels/hopper_forward.h"

namespace gdpa::gpu {
namespace {

// --- the tile --------------------------------------------------------------------------------------------------------

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

/// Whether the kernel of a function with so many reads takes narrower tiles of keys. The compiler loads the elements
/// for many scores at once, and would spill with wider tiles.
bool takes_narrow_tiles(int reads) { return reads > 1; }

/// Sets the tile, warps and stages of a kernel, for keys of this mean length and at most `most_queries` queries in a
/// sequence (the largest number if it is not known). Few keys need few stages to stay in shared memory, and Q, which
/// then streams, gets several. Few queries need one warpgroup only. With a head dim above 128, registers and shared
/// memory decide. The elements of a dense bias, and of lookups, are staged if two stages of each operand then fit.
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

/// With keys in pages, sets the largest boxes that divide a page and a tile of keys. Pages and tiles have multiples of
/// 16 rows. The tile shrinks if it has more boxes than the producer thread has registers for their pages.
void choose_boxes(int64_t page_rows, HopperForward& kernel) {
  constexpr int most_boxes = 8;
  const auto box = [&] { return static_cast<int>(std::gcd(page_rows, int64_t{kernel.tile_keys})); };
  while (kernel.tile_keys > most_boxes * box()) kernel.tile_keys -= least_page_rows;
  kernel.box_keys = box();
}

// --- the order of the tiles ------------------------------------------------------------------------------------------

/// Whether CTAs take query tiles from a counter if K and V do not stay in shared memory. Clearing the counter takes
/// about 2 us, which must be less than the time that a better balance saves. Therefore
///   - each CTA has many key tiles;
///   - query tiles differ in cost: a mask excludes keys, or lengths differ and tiles are long. The sums of the costs of
///     many short tiles differ little, and the strided order is 2 to 10 % faster (docs/notebook/hopper-forward.md).
/// `tiles` is the number of query tiles for each CTA.
bool worth_a_counter(const Problem& problem, int64_t tiles, int tile_keys) {
  constexpr int64_t least_key_tiles = 32, long_tile = 8;
  const bool is_jagged = queries_of(problem).form == Form::jagged || keys_of(problem).form == Form::jagged;
  const int64_t key_tiles = divide_up(keys_of(problem).mean_length(), tile_keys);
  const bool tiles_differ = !problem.keeps_all_scores() || (is_jagged && key_tiles >= long_tile);
  return tiles_differ && tiles * key_tiles >= least_key_tiles;
}

/// The number of query tiles that attend to the same keys. These are the tiles of an average sequence in all query
/// heads of a key head. The result is at most the number that the tile scheduler finds at once.
int64_t tiles_of_key_head(const Problem& problem, const HopperForward& kernel) {
  const int64_t group = problem.heads_q / std::max<int64_t>(1, problem.heads_k);
  const int64_t tiles = group * divide_up(queries_of(problem).mean_length(), kernel.tile_queries);
  return std::clamp<int64_t>(tiles, 1, pipeline::most_tiles_at_once);
}

/// The number of query tiles that a CTA takes from the counter at once, if K and V stay in shared memory. The tile
/// scheduler needs about the time of 4 key tiles to find query tiles, however many it finds at once. If heads are
/// short, it finds the tiles of several heads.
int64_t tiles_at_once(const Problem& problem, const HopperForward& kernel, int64_t tiles_of_head) {
  constexpr int64_t least_key_tiles = 4;
  const int64_t key_tiles = std::max<int64_t>(1, divide_up(keys_of(problem).mean_length(), kernel.tile_keys));
  return std::max(tiles_of_head, divide_up(least_key_tiles, key_tiles));
}

/// Whether CTAs take the query tiles of whole heads from a counter, if K and V stay in shared memory or a head has one
/// query tile. All CTAs then read tokens that are near each other. This is 5 to 7 % faster than contiguous ranges if a
/// head has few query tiles, and otherwise about 1 % faster (docs/notebook/hopper-forward.md). Contiguous ranges are
/// better in three cases:
///   - The batch shares the keys. A CTA with a contiguous range loads them once.
///   - CTAs have few heads. With a counter, a CTA may have one head more than the others.
///   - Tiles have very few rows. The tile scheduler then limits the kernel, and finds contiguous tiles faster.
bool worth_a_counter_of_heads(const Problem& problem, int64_t tiles_of_head, int64_t tiles) {
  constexpr int64_t least_heads = 32, very_few_rows = 48;
  const int64_t rows = std::max(queries_of(problem).mean_length(), keys_of(problem).mean_length());
  return !has_shared_keys(problem) && tiles >= tiles_of_head * least_heads && rows > very_few_rows;
}

}  // namespace

void add_hopper_forward(const Call& call, GpuPlan& plan) {
  const Problem& problem = call.problem;
  const Side queries = queries_of(problem), keys = keys_of(problem);
  HopperForward kernel{attention_kernel_for(call), function_form_for(call)};
  plan.attention_adds = epilogue_may_add(problem);
  if (plan.attention_adds) kernel.epilogue = Epilogue::addend;
  const std::optional<double> factor = factor_of_scale(call);
  // fp16 ends at 65504, which scores of head dim 128 reach.
  if (factor && kernel.element != GpuElement::float16) {
    kernel.scales_scores = false;
    plan.output_factor = *factor;
  }
  const TileLengths lengths = tile_lengths_of(problem);
  const StagedReads reads = staged_reads_of(call);
  choose_forward_tiles(lengths.most_queries, lengths.mean_keys, reads, kernel);
  if (problem.has_pages()) choose_boxes(problem.page_rows, kernel);
  choose_mask(call, false, kernel, plan);
  const bool keys_stay = keys.mean_length() <= int64_t{kernel.stages} * kernel.tile_keys;
  // Pages have no cumulative lengths, from which a CTA could find a contiguous range of equal cost.
  const bool has_one_tile = lengths.most_queries <= kernel.tile_queries && !problem.has_pages();

  const int64_t tiles = problem.heads_q * queries.most_tiles(kernel.tile_queries, problem.batch);
  const int64_t ctas = std::clamp<int64_t>(tiles, 1, call.gpu.multiprocessors);  // also of an empty batch
  const int64_t tiles_of_cta = tiles / call.gpu.multiprocessors;
  const bool has_contiguous_tiles = keys_stay || has_one_tile;
  const int64_t tiles_of_head = keys_stay ? tiles_of_key_head(problem, kernel) : 1;
  const bool is_dynamic = has_contiguous_tiles ? worth_a_counter_of_heads(problem, tiles_of_head, tiles_of_cta)
                                               : worth_a_counter(problem, tiles_of_cta, kernel.tile_keys);
  HopperForwardLaunch of;
  of.ctas = ctas;
  pipeline::TileDistribution& distribution = of.tiles;
  distribution.order = is_dynamic             ? pipeline::TileOrder::dynamic
                       : has_contiguous_tiles ? pipeline::TileOrder::contiguous
                                              : pipeline::TileOrder::strided;
  distribution.taken_at_once =
      static_cast<unsigned>(keys_stay ? tiles_at_once(problem, kernel, tiles_of_head) : tiles_of_head);
  plan.reason = keys_stay ? "the keys of most sequences fit in shared memory, and stay there for all tiles of queries"
                : has_one_tile && !is_dynamic
                    ? "each head has one tile of queries: every CTA gets the same number of keys, however long the "
                      "sequences are"
                : is_dynamic ? "one CTA on each multiprocessor takes tiles of queries from a counter, so that all CTAs "
                               "end at about the same time"
                             : "one CTA on each multiprocessor takes tiles of queries and iterates over the keys";
  if (takes_narrow_tiles(reads.all)) {
    plan.reason += fmt::format("; tiles of keys are narrow: f reads {} elements of tensors at each score", reads.all);
  }
  if (problem.has_pages()) {
    plan.reason += fmt::format("; TMA loads {} keys at a time from pages of {}", kernel.box_keys, problem.page_rows);
  }
  if (kernel.stages_lookups) plan.reason += "; the elements of lookups are copied to shared memory";
  if (kernel.bias_tile != BiasTile::none) plan.reason += "; the dense bias is copied to shared memory";
  // A launch costs more than the guards of few scores.
  const bool has_second_pass = call.facts().bounds_scores && !has_few_scores(problem);
  const bool shares_counters = distribution.order == pipeline::TileOrder::dynamic;
  if (shares_counters) {
    constexpr int64_t most_passes = 2;
    of.tiles_taken = plan.workspace.reserve(most_passes * static_cast<int64_t>(sizeof(unsigned)));
  }
  if (has_second_pass) {
    of.found_nan = plan.workspace.reserve((shares_counters ? 1 : ctas) * static_cast<int64_t>(sizeof(int)));
    kernel.pass = hopper::Pass::first;
  }
  if (shares_counters) plan.clear(of.tiles_taken, plan.workspace.bytes());
  plan.add_products(launch(kernel, of), kernel);
  if (has_second_pass) {
    kernel.pass = hopper::Pass::second;
    plan.launches.push_back(launch(kernel, of).overlapping_previous());
  }
}

}  // namespace gdpa::gpu
