// The plan of forward on Hopper. docs/notebook/hopper-forward.md has the measurements.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "gpu/families/hopper/forward_tiles.h"
#include "gpu/families/hopper/lengths.h"
#include "gpu/families/hopper/plans.h"
#include "gpu/kernels/hopper_query_major.h"
#include "gpu/workspace.h"

namespace gdpa::gpu {
namespace {

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
