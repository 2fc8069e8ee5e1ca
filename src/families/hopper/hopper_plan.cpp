// See hopper_plan.h. hopper_tiles.cpp chooses the tiles.
#include "families/hopper/hopper_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "codegen/cuda_gradients.h"
#include "common/window_mask.cuh"
#include "families/hopper/hopper_tiles.h"
#include "families/planning.h"
#include "hopper/key_tile.cuh"
#include "plan/thresholds.h"

namespace gdpa::families {
namespace {

namespace thresholds = plan::thresholds;
using plan::GpuPlan;
using plan::KernelKind;
using plan::KernelSpec;

bool has_wide_heads(const Problem& problem) {
  return hopper::is_wide(static_cast<int>(problem.head_dim), static_cast<int>(problem.head_dim_v));
}

/// The length of all sequences of keys, or 0 if the host does not know it.
int64_t known_length_of_keys(const Problem& problem) {
  return problem.key_form == Form::jagged || problem.batch == 0 ? 0 : keys_of(problem).length();
}

// --- the lengths that choose kernels ---------------------------------------------------------------------------------

/// The lengths that choose the tiles of a kernel. In deterministic mode they are constants: the bits of a sequence must
/// not depend on the other sequences of the batch, and the host does not know the length of each.
struct TileLengths {
  int64_t mean_queries;
  int64_t mean_keys;
  int64_t most_queries;  ///< in a sequence; `unknown` if the host does not know it
  int64_t most_keys;
};

TileLengths tile_lengths_of(const Problem& problem) {
  constexpr int64_t unknown = std::numeric_limits<int64_t>::max();
  if (problem.deterministic) {
    return {thresholds::queries_of_deterministic_tiles, thresholds::keys_of_deterministic_tiles, unknown, unknown};
  }
  const Side queries = queries_of(problem), keys = keys_of(problem);
  const int64_t known_keys = known_length_of_keys(problem);
  return {queries.mean_length(), keys.mean_length(), queries.form == Form::jagged ? unknown : queries.mean_length(),
          known_keys == 0 ? unknown : known_keys};
}

// --- how backward computes dQ ----------------------------------------------------------------------------------------

/// Whether semaphores order the additions to dQ. One tile of keys without a mask needs none, but a deterministic call
/// has the same kernels for all lengths. With head dims above 128 they were slower.
bool has_dq_semaphores(const Problem& problem) {
  if (!problem.wanted.query || has_shared_queries(problem) || has_wide_heads(problem)) return false;
  if (problem.deterministic) return true;
  return !hopper::is_whole(problem.keeps_all_scores(), known_length_of_keys(problem), hopper::backward_tile_keys);
}

/// Returns the largest number of keys of a sequence for which one CTA takes all key tiles:
///
///   0           dQ is not wanted, a head dim is above 128, or the batch shares the queries (dQ is then a sum over the
///               batch)
///   one tile    the batch has fewer heads than the GPU has multiprocessors, or the L2 cache has not enough room.
///               Always in deterministic mode: the order of the additions to dQ differs
///   two tiles   each multiprocessor has at least one head
///   four tiles  each multiprocessor has many heads
///
/// A CTA reads Q and dO again for each key tile, and adds to dQ. The L2 cache has enough room if it keeps them from one
/// key tile to the next. If the batch shares the keys, they belong to the queries of many entries, and do not fit.
int whole_keys(const Problem& problem, const plan::Gpu& gpu) {
  if (has_shared_queries(problem) || has_wide_heads(problem) || !problem.wanted.query) return 0;
  const int64_t queries = queries_of(problem).mean_length() * (problem.heads_q / problem.heads_k);
  constexpr int64_t bytes_of_element = 2;
  const int64_t bytes = queries * (2 * problem.head_dim + problem.head_dim_v) * bytes_of_element;
  // The work of a CTA at the end, while others are idle, has to be small compared with all of its work.
  const int64_t heads = problem.key_entries() * problem.heads_k;
  int tiles = thresholds::whole_tiles_of_many_heads;
  if (problem.deterministic || heads < thresholds::few_heads_per_multiprocessor * gpu.multiprocessors ||
      has_shared_keys(problem) || bytes > thresholds::most_query_bytes_of_whole_tiles) {
    tiles = thresholds::whole_tiles;
  } else if (heads < thresholds::many_heads_per_multiprocessor * gpu.multiprocessors) {
    tiles = thresholds::whole_tiles_of_few_heads;
  }
  return tiles * hopper::backward_tile_keys;
}

/// Returns the largest number of keys of a sequence for which several CTAs sum dQ in the gradient, in its type.
int direct_keys(const Problem& problem) {
  return has_dq_semaphores(problem) ? thresholds::direct_tiles * hopper::backward_tile_keys : 0;
}

/// Whether one CTA takes all key tiles of each sequence, or the host knows that no sequence has more than `short_keys`
/// keys.
bool is_whole_or_short(const Problem& problem, const plan::Gpu& gpu, int64_t short_keys) {
  const int64_t keys = known_length_of_keys(problem);
  return hopper::is_whole(problem.keeps_all_scores(), keys, whole_keys(problem, gpu)) ||
         (keys > 0 && keys <= short_keys);
}

/// Whether some of dQ is accumulated in fp32 in the workspace.
bool accumulates_grad_query(const Problem& problem, const plan::Gpu& gpu) {
  return problem.wanted.query && !is_whole_or_short(problem, gpu, direct_keys(problem));
}

/// Whether the additions to dQ have one order without `ordered`: one CTA takes all tiles of a sequence, or a sequence
/// has two tiles, of which one stores.
bool adds_in_one_order(const Problem& problem, const plan::Gpu& gpu) {
  constexpr int64_t two_tiles = 2 * hopper::backward_tile_keys;
  return is_whole_or_short(problem, gpu, two_tiles);
}

/// The most query tiles of one head and one batch entry that attend to a tile of keys.
int64_t most_query_tiles(const Problem& problem, int tile_queries) {
  const int64_t entries = problem.query_form == Form::shared ? 1 : std::max<int64_t>(1, problem.batch);
  const int64_t tiles = divide_up(problem.rows_q / entries, tile_queries);
  const Mask& mask = problem.mask;
  const bool is_window = mask.left >= 0 && mask.right >= 0;
  if (!is_window) return tiles;
  const double queries = static_cast<double>(mask.left) + static_cast<double>(mask.right) + hopper::backward_tile_keys;
  const double of_window = std::ceil(queries / tile_queries) + 1;  // tiles need not begin with the window
  return of_window < static_cast<double>(tiles) ? static_cast<int64_t>(of_window) : tiles;
}

/// If tiles of keys wait for each other: the number of heads whose tiles the table interleaves
/// (kernels/hopper/head_groups.cuh).
int64_t heads_per_group(const Problem& problem, const plan::Gpu& gpu, int tile_queries) {
  // A CTA has then finished `ahead` steps when the next tile of keys of its head begins. In deterministic mode this
  // tile waits for the CTA. Otherwise tiles wait for the first writer only. With more heads, Q, dO and accumulators of
  // long sequences would not stay in the L2 cache, and each tile looks at all entries of a group.
  const int64_t ahead = problem.deterministic ? 4 : 2;
  constexpr int64_t most = 256;
  const int64_t entries_of_keys = std::max<int64_t>(1, problem.batch / std::max<int64_t>(1, problem.key_entries()));
  const int64_t heads_of_keys = problem.heads_q / problem.heads_k;
  const int64_t steps = std::max<int64_t>(1, entries_of_keys * heads_of_keys * most_query_tiles(problem, tile_queries));
  return std::clamp<int64_t>(ahead * gpu.multiprocessors / steps, 1, most);
}

// --- the query tiles of several batch entries ------------------------------------------------------------------------

/// The tiles of keys of one sequence that may differ in their query tiles: three without a mask (class_of in
/// kernels/hopper/key_tile_table.cuh).
int64_t most_key_tiles(const Problem& problem) {
  return divide_up(keys_of(problem).length(), hopper::backward_tile_keys);
}

int64_t bytes_of_segments(const Problem& problem) {
  constexpr int64_t unmasked_classes = 3;
  const int64_t heads = problem.mask_depends_on_head ? problem.heads_k : 1;
  const int64_t classes = problem.keeps_all_scores() ? unmasked_classes : heads * most_key_tiles(problem);
  return classes * problem.batch * static_cast<int64_t>(sizeof(hopper::QuerySegment<WindowMask>));
}

/// The host does not know how many tiles of keys a jagged sequence has. It may have all rows, which would take very
/// much memory with many entries.
constexpr int64_t most_bytes_of_segments = int64_t{1} << 29;

// --- which problems --------------------------------------------------------------------------------------------------

/// Whether all entries with the same keys have the same out_scale.
bool has_one_scale(const Problem& problem) {
  return problem.out_scale == OutScale::Kind::number || problem.out_scale == OutScale::Kind::reciprocal_length_k;
}

std::string why_not_backward(const PlanRequest& request) {
  const Problem& problem = request.problem;
  // Two sequences may overlap, and dQ of all sequences then comes from other kernels. In deterministic mode it always
  // comes from one kernel.
  if (problem.has_key_gaps && problem.deterministic && problem.wanted.query) {
    return "keys may overlap, and the bits of dQ must not depend on it";
  }
  if (problem.has_key_gaps && has_shared_queries(problem)) return "the batch shares queries, and keys may overlap";
  if (problem.has_batch_map) {
    if (has_wide_heads(problem)) return "several batch entries may have the same keys, and a head dim is above 128";
    // In deterministic mode, a large batch has the kernels of a small one.
    if (!problem.deterministic && bytes_of_segments(problem) > most_bytes_of_segments) {
      return "several batch entries may have the same keys, and the tiles that a mask keeps need too much memory";
    }
  }
  if (has_wide_heads(problem)) {
    if (has_shared_keys(problem)) return "the batch shares keys, and a head dim is above 128";
    if (problem.deterministic && problem.wanted.query) {
      return "dQ has to be summed in one order, and a head dim is above 128";
    }
  } else if (has_shared_keys(problem)) {
    // The queries of a split of the batch are computed as one sequence.
    if (problem.query_form != Form::jagged || problem.has_query_gaps || problem.has_output_offsets) {
      return "the batch shares keys, and queries are not packed";
    }
    if (!problem.keeps_all_scores()) return "the batch shares keys, and there is a mask";
    if (!has_one_scale(problem)) return "the batch shares keys, and its entries differ in out_scale";
    if (request.reads_query_position) return "the batch shares keys, and f depends on the position of a query";
  }
  if (problem.deterministic && problem.wanted.query && has_shared_queries(problem)) {
    return "the batch shares the queries, and dQ has to be summed in one order";
  }
  return {};
}

// --- gradients of tensors --------------------------------------------------------------------------------------------

/// The number of elements for which each consumer thread has a sum of its own: the elements that the read of
/// activation::read_with_sums() has in a head, or 0 if these are too many. Rounded up, so that similar calls have the
/// same kernel.
int sum_elements_of(const Params& params, const activation::Function& function, unsigned wanted) {
  constexpr int64_t most = 128, unit = 16;
  const std::optional<std::size_t> input = activation::read_with_sums(function, wanted);
  if (!input) return 0;
  const activation::Input& read = function.inputs()[*input];
  int64_t elements = 1;  // an axis of tokens has more elements than a sequence
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    if (activation::dependence_of(read.indices[axis], function.inputs()) == activation::Dependence::none) continue;
    elements = std::min<int64_t>(elements * params.parameters[read.tensor].sizes[axis], most + 1);
  }
  return elements <= most ? static_cast<int>(divide_up(elements, unit) * unit) : 0;
}

// --- plans -----------------------------------------------------------------------------------------------------------

KernelSpec hopper_kernel_for(const PlanRequest& request, KernelKind kind) {
  KernelSpec kernel = kernel_for(request, kind);
  kernel.of_family = plan::HopperSpec();
  return kernel;
}

/// The largest boxes that divide a page and a tile of keys. Pages and tiles have multiples of 16 rows. The tile shrinks
/// if it has more boxes than the producer thread has registers for their pages.
void choose_boxes(KernelSpec& kernel, int64_t page_rows) {
  constexpr int most_boxes = 8;
  const auto box = [&] { return static_cast<int>(std::gcd(page_rows, int64_t{kernel.tile_keys})); };
  while (kernel.tile_keys > most_boxes * box()) kernel.tile_keys -= least_page_rows;
  kernel.hopper().box_keys = box();
}

/// Whether CTAs take query tiles from a counter if K and V do not stay in shared memory. Clearing the counter takes
/// about 2 us, which must be less than the time that a better balance saves: tiles have to differ in cost, and each CTA
/// needs many key tiles. If CTAs have many short tiles, the sums of the costs differ little, and the strided order is 2
/// to 10 % faster (docs/notebook/hopper-forward.md). `tiles` is the number for each CTA.
bool worth_a_counter(const Problem& problem, int64_t tiles, int tile_keys) {
  constexpr int64_t least_tiles = 4, least_key_tiles = 32, short_tile = 8, many = 24;
  const bool is_jagged = queries_of(problem).form == Form::jagged || keys_of(problem).form == Form::jagged;
  const bool has_mask = !problem.keeps_all_scores();
  const int64_t key_tiles = divide_up(keys_of(problem).mean_length(), tile_keys);
  if (!has_mask && key_tiles < short_tile && tiles >= many) return false;
  return (is_jagged || has_mask) && tiles >= least_tiles && tiles * key_tiles >= least_key_tiles;
}

/// The number of query tiles that attend to the same keys. These are the tiles of an average sequence in all query
/// heads of a key head. The result is at most the number that the tile scheduler finds at once. If sequences have one
/// key tile, fewer tiles at once are 2 % faster, although K and V are loaded more often. A likely cause is that the
/// CTAs then read tokens that are nearer to each other (docs/notebook/hopper-forward.md).
int64_t tiles_of_key_head(const Problem& problem, const KernelSpec& kernel) {
  constexpr int64_t most_of_one_key_tile = 4;
  const int64_t group = problem.heads_q / std::max<int64_t>(1, problem.heads_k);
  const int64_t tiles = group * divide_up(queries_of(problem).mean_length(), kernel.tile_queries);
  const bool has_one_key_tile = keys_of(problem).mean_length() <= kernel.tile_keys;
  return std::clamp<int64_t>(tiles, 1, has_one_key_tile ? most_of_one_key_tile : hopper::most_tiles_at_once);
}

/// The number of query tiles that a CTA takes from the counter at once, if K and V stay in shared memory. The tile
/// scheduler needs about the time of 4 key tiles to find query tiles, however many it finds at once. If heads are
/// short, it finds the tiles of several heads.
int64_t tiles_at_once(const Problem& problem, const KernelSpec& kernel, int64_t tiles_of_head) {
  constexpr int64_t least_key_tiles = 4;
  const int64_t key_tiles = std::max<int64_t>(1, divide_up(keys_of(problem).mean_length(), kernel.tile_keys));
  return std::max(tiles_of_head, divide_up(least_key_tiles, key_tiles));
}

/// Whether CTAs take the query tiles of whole heads from a counter, if K and V stay in shared memory or a head has one
/// query tile. All CTAs then read tokens that are near each other. This is 5 to 7 % faster than contiguous ranges if a
/// head has few query tiles, and otherwise about 1 % faster (docs/notebook/hopper-forward.md). Contiguous ranges have
/// equal cost, but with a counter, a CTA may have one head more than the others. Each CTA therefore needs many heads.
/// If tiles have very few rows, the tile scheduler limits the kernel, and it finds contiguous tiles faster.
bool worth_a_counter_of_heads(const Problem& problem, int64_t tiles_of_head, int64_t tiles, bool keys_stay) {
  constexpr int64_t few_tiles = 4, least_heads_of_few_tiles = 16, least_heads = 32, very_few_rows = 48;
  if (std::max(queries_of(problem).mean_length(), keys_of(problem).mean_length()) <= very_few_rows) return false;
  const bool has_few_tiles = keys_stay && tiles_of_head <= few_tiles;
  // The batch shares the keys: a CTA with a contiguous range loads them once.
  return !has_shared_keys(problem) && tiles >= tiles_of_head * (has_few_tiles ? least_heads_of_few_tiles : least_heads);
}

/// The CTAs that share a contiguous range of query tiles, each with different key heads. All ranges have equally many.
int ctas_per_range_of(const Problem& problem, hopper::TileOrder order, int64_t ctas) {
  if (order != hopper::TileOrder::contiguous) return 1;
  return static_cast<int>(std::gcd(problem.heads_k, std::max<int64_t>(1, ctas)));
}

/// One persistent CTA on each multiprocessor.
GpuPlan plan_hopper_forward(const PlanRequest& request) {
  const Problem& problem = request.problem;
  const Side queries = queries_of(problem), keys = keys_of(problem);
  KernelSpec kernel = hopper_kernel_for(request, KernelKind::forward);
  kernel.adds_query = problem.add_query;
  const TileLengths lengths = tile_lengths_of(problem);
  const StagedReads reads = {request.reads, request.reads_of_lines, request.lookups, request.tile_element_bytes,
                             request.bias_tile};
  choose_hopper_tiles(kernel, lengths.most_queries, lengths.mean_keys, reads);
  if (problem.has_pages()) choose_boxes(kernel, problem.page_rows);
  const bool keys_stay = keys.mean_length() <= int64_t{kernel.stages} * kernel.tile_keys;
  // Pages have no cumulative lengths, from which a CTA could find a contiguous range of equal cost.
  const bool has_one_tile = lengths.most_queries <= kernel.tile_queries && !problem.has_pages();

  GpuPlan plan;
  plan::HopperPlan& hopper_part = plan.of_family.emplace<plan::HopperPlan>();
  const int64_t tiles = problem.heads_q * queries.most_tiles(kernel.tile_queries, problem.batch);
  const int64_t ctas = std::clamp<int64_t>(tiles, 1, request.gpu.multiprocessors);  // also of an empty batch
  const int64_t tiles_of_cta = tiles / request.gpu.multiprocessors;
  const bool has_contiguous_tiles = keys_stay || has_one_tile;
  const int64_t tiles_of_head = keys_stay ? tiles_of_key_head(problem, kernel) : 1;
  const bool is_dynamic = has_contiguous_tiles
                              ? worth_a_counter_of_heads(problem, tiles_of_head, tiles_of_cta, keys_stay)
                              : worth_a_counter(problem, tiles_of_cta, kernel.tile_keys);
  hopper::TileDistribution& distribution = hopper_part.tiles;
  distribution.order = is_dynamic             ? hopper::TileOrder::dynamic
                       : has_contiguous_tiles ? hopper::TileOrder::contiguous
                                              : hopper::TileOrder::strided;
  distribution.ctas_per_range = ctas_per_range_of(problem, distribution.order, ctas);
  distribution.taken_at_once =
      static_cast<unsigned>(keys_stay ? tiles_at_once(problem, kernel, tiles_of_head) : tiles_of_head);
  plan.reason = keys_stay ? "the keys of most sequences fit in shared memory, and stay there for all tiles of queries"
                : has_one_tile && !is_dynamic
                    ? "each head has one tile of queries: every CTA gets the same number of keys, however long the "
                      "sequences are"
                : is_dynamic ? "one CTA on each multiprocessor takes tiles of queries from a counter, so that all CTAs "
                               "end at about the same time"
                             : "one CTA on each multiprocessor takes tiles of queries and iterates over the keys";
  if (takes_narrow_tiles(request.reads)) {
    plan.reason +=
        fmt::format("; tiles of keys are narrow: f reads {} elements of tensors at each score", request.reads);
  }
  if (problem.has_pages()) {
    plan.reason +=
        fmt::format("; TMA loads {} keys at a time from pages of {}", kernel.hopper().box_keys, problem.page_rows);
  }
  if (kernel.hopper().stages_lookups) plan.reason += "; the elements of lookups are copied to shared memory";
  if (kernel.hopper().bias_tile != BiasTile::none) plan.reason += "; the dense bias is copied to shared memory";
  // A launch costs more than the guards of few scores.
  const bool has_second_pass = request.bounds_scores && !plan::has_few_scores(problem);
  WorkspaceLayout workspace(plan.workspace);
  const bool shares_counters = distribution.order == hopper::TileOrder::dynamic;
  if (shares_counters) {
    constexpr int64_t most_passes = 2;
    hopper_part.tiles_taken = workspace.reserve(most_passes * static_cast<int64_t>(sizeof(unsigned)));
  }
  if (has_second_pass) {
    hopper_part.found_nan = workspace.reserve((shares_counters ? 1 : ctas) * static_cast<int64_t>(sizeof(int)));
    kernel.hopper().pass = hopper::Pass::first;
  }
  if (shares_counters) workspace.clear_reserved();
  plan.steps.push_back({kernel, ctas});
  if (has_second_pass) {
    kernel.hopper().pass = hopper::Pass::second;
    plan.steps.push_back({kernel, ctas});
    plan.steps.back().overlaps_previous = true;
  }
  return plan;
}

/// Splits of all queries where the batch shares the keys, and one CTA takes `tile_keys` of them. Splits are equally
/// long: one for each multiprocessor, or up to four where fewer multiprocessors are then idle at the end.
int64_t splits_of_queries(const PlanRequest& request, int64_t tile_keys) {
  constexpr int64_t least_rows = 256;  // of a split
  const Problem& problem = request.problem;
  const int64_t multiprocessors = request.gpu.multiprocessors;
  const int64_t owners = std::max<int64_t>(1, problem.heads_k * divide_up(keys_of(problem).length(), tile_keys));
  const int64_t most = std::max<int64_t>(1, problem.rows_q / least_rows);
  int64_t best = 1;
  double best_busy = 0;
  for (int64_t rounds = 1; rounds <= 4; ++rounds) {
    constexpr double worth_a_round = 1.05;
    const int64_t splits = std::clamp<int64_t>(rounds * multiprocessors / owners, 1, most);
    const int64_t tiles = owners * splits;
    const double busy =
        static_cast<double>(tiles) / static_cast<double>(divide_up(tiles, multiprocessors) * multiprocessors);
    if (busy > best_busy * worth_a_round) {
      best = splits;
      best_busy = busy;
    }
  }
  return best;
}

/// See hopper::Pass. The first pass finds values that are not finite in dK or dV. Infinities
/// of f' do not reach dV, and dQ, a sum over all keys, is not checked. So guards stay where f' matters for dQ only.
void leave_guards_out(GpuPlan& plan) {
  const KernelSpec& wanted = plan.steps[1].kernel;
  const bool shows_in_gradients = wanted.wants_grad_key || (wanted.wants_grad_value && !wanted.wants_grad_query);
  if (!shows_in_gradients) return;
  // Coefficients with the scale need registers, which the second pass does not have with wider heads.
  constexpr int most_columns_with_scale = 96;
  plan.steps[1].kernel.hopper().may_take_scale =
      wanted.hopper().takes_constant_factors && std::max(wanted.head_dim, wanted.head_dim_v) <= most_columns_with_scale;
  plan::GpuStep schedule = plan.steps[0], backward = plan.steps[1];
  plan.steps[1].kernel.hopper().pass = hopper::Pass::first;
  schedule.kernel.hopper().pass = backward.kernel.hopper().pass = hopper::Pass::second;
  // The schedule of the second pass clears the sums of the first one.
  schedule.kernel.wanted_parameters = backward.kernel.wanted_parameters;
  schedule.overlaps_previous = true;
  plan.steps.insert(plan.steps.begin() + 2, {schedule, backward});
}

std::string reason_of_backward(const PlanRequest& request, bool accumulates) {
  const Problem& problem = request.problem;
  if (!problem.wanted.query) return "one CTA on each multiprocessor takes tiles of keys, and dQ is not computed";
  if (!accumulates) {
    return has_dq_semaphores(problem)
               ? "one CTA on each multiprocessor takes tiles of keys, and dQ is summed in its type"
               : "one CTA on each multiprocessor takes all keys of a sequence";
  }
  if (has_wide_heads(problem)) {
    return "one CTA on each multiprocessor takes tiles of keys, one warpgroup for dK and one for dV, and accumulates "
           "dQ "
           "in fp32";
  }
  if (has_shared_queries(problem)) {
    return "one CTA on each multiprocessor takes tiles of keys, and accumulates dQ, which the batch shares, in fp32";
  }
  return fmt::format(
      "one CTA on each multiprocessor takes tiles of keys, and accumulates dQ in fp32 where a sequence has more than "
      "{} keys",
      std::max(whole_keys(problem, request.gpu), direct_keys(problem)));
}

/// Whether the backward kernel multiplies dV and dS by constant factors. fp16 has too small a range for P and dS
/// without factors.
bool takes_constant_factors(const PlanRequest& request, bool rounds_grad_query) {
  // If the batch shares the queries, another kernel rounds dQ, and knows no such factor. The kernel of wide heads
  // multiplies each part of dQ.
  const Problem& problem = request.problem;
  return (has_wide_heads(problem) || !rounds_grad_query) && problem.dtype == DType::bfloat16 &&
         plan::accuracy_of(problem) == Accuracy::fast;
}

/// Whether the backward kernel multiplies dV and dS by factors of the head. The sum of a gradient over several query
/// heads has one factor for all heads, and dQ of wide heads has constant factors only.
bool takes_head_factors(const PlanRequest& request, bool rounds_grad_query) {
  const Problem& problem = request.problem;
  return request.reads_numbers && !has_wide_heads(problem) && problem.heads_q == problem.heads_k &&
         takes_constant_factors(request, rounds_grad_query);
}

/// The gradients of tensors that the backward kernel computes. It needs dS, and the registers of a tile of 64 queries
/// and head dims up to 128. Their sums end with an entry, and the kernel does not run if keys overlap.
plan::FusedGradients fused_gradients(const PlanRequest& request) {
  const Problem& problem = request.problem;
  if (problem.has_batch_map || problem.has_key_gaps) return plan::FusedGradients::none;
  if (has_wide_heads(problem) || !(problem.wanted.query || problem.wanted.key)) return plan::FusedGradients::none;
  if (request.number_gradients != 0) return plan::FusedGradients::of_numbers;
  return request.score_gradients != 0 ? plan::FusedGradients::of_scores : plan::FusedGradients::none;
}

constexpr int64_t slots_of_a_cta = 64;

/// The CTAs of a kernel that clears or rounds the accumulators of dQ of `query_tiles` query tiles. If these are few, a
/// CTA has fewer of them, so that each multiprocessor has two CTAs. Each of the 8 warps of a CTA needs a query tile.
int64_t ctas_of_accumulators(int64_t query_tiles, const plan::Gpu& gpu) {
  constexpr int64_t least_slots = 8, ctas_of_multiprocessor = 2;
  const int64_t wanted = std::max(divide_up(query_tiles, slots_of_a_cta), ctas_of_multiprocessor * gpu.multiprocessors);
  return std::min(wanted, divide_up(query_tiles, least_slots));
}

/// key_schedule, the main kernel with one persistent CTA on each multiprocessor, and the rounding of the accumulators
/// of dQ that it does not round itself.
GpuPlan plan_hopper_backward(const PlanRequest& request) {
  const Problem& problem = request.problem;
  const plan::Gpu& gpu = request.gpu;
  const Side queries = queries_of(problem), keys = keys_of(problem);
  const bool is_wide = has_wide_heads(problem);
  const bool accumulates = accumulates_grad_query(problem, gpu);
  const bool has_writers = has_dq_semaphores(problem);

  KernelSpec kernel = hopper_kernel_for(request, KernelKind::backward);
  kernel.keys_shared = has_shared_keys(problem);
  kernel.has_batch_map = problem.has_batch_map;
  const plan::FusedGradients gradients = fused_gradients(request);
  const bool has_gradients = gradients != plan::FusedGradients::none;
  TileLengths lengths = tile_lengths_of(problem);
  if (kernel.keys_shared && !problem.deterministic) lengths.mean_queries = problem.rows_q;  // one stream of queries
  choose_hopper_backward_tiles(kernel, has_gradients ? plan::FunctionRegisters::many : request.function,
                               problem.keeps_all_scores(), lengths.mean_queries, lengths.most_keys);
  kernel.wants_grad_query = problem.wanted.query;
  kernel.wants_grad_key = problem.wanted.key;
  kernel.wants_grad_value = problem.wanted.value;
  kernel.hopper().ordered = problem.deterministic && has_writers;
  kernel.hopper().has_dq_semaphores = has_writers;
  kernel.hopper().scales_entries = problem.has_batch_map && !has_one_scale(problem);

  GpuPlan plan;
  plan::HopperPlan& hopper_part = plan.of_family.emplace<plan::HopperPlan>();
  plan.deterministic = has_writers ? kernel.hopper().ordered || adds_in_one_order(problem, gpu) : !accumulates;
  plan.reason = reason_of_backward(request, accumulates);
  hopper_part.whole_keys = whole_keys(problem, gpu);
  hopper_part.direct_keys = direct_keys(problem);
  if (kernel.keys_shared) plan.splits = splits_of_queries(request, kernel.tile_keys);
  hopper_part.slots = problem.heads_k * keys.most_tiles(kernel.tile_keys, plan.splits);
  // Rows of dQ with accumulators, and rows that no sequence has.
  hopper_part.prepares_grad_query =
      problem.wanted.query && (problem.query_form == Form::jagged || accumulates || has_writers);
  const int64_t query_tiles =
      hopper_part.prepares_grad_query ? problem.heads_q * queries.most_tiles(kernel.tile_queries, 1) : 0;

  WorkspaceLayout layout(plan.workspace);
  hopper_part.slot_counter = layout.reserve(3 * sizeof(unsigned));
  layout.clear_reserved();
  hopper_part.key_tiles = layout.reserve(hopper_part.slots * static_cast<int64_t>(sizeof(hopper::KeyTile<WindowMask>)));
  if (has_writers) layout.clear_reserved();
  if (problem.has_batch_map) {
    hopper_part.segments = layout.reserve(bytes_of_segments(problem));
    hopper_part.most_key_tiles = most_key_tiles(problem);
  }
  if (has_writers) {
    hopper_part.semaphores_per_head = queries.most_tiles(kernel.tile_queries, 1);
    hopper_part.heads_per_group = heads_per_group(problem, gpu, kernel.tile_queries);
    hopper_part.dq_semaphores =
        layout.reserve(problem.heads_q * hopper_part.semaphores_per_head * static_cast<int64_t>(sizeof(unsigned)));
  }
  if (accumulates) {
    const hopper::AccumulatorShape shape =
        hopper::accumulator_shape_of(kernel.tile_queries, kernel.head_dim, kernel.head_dim_v);
    plan.workspace.grad_query =
        layout.reserve_accumulators(problem.rows_q, problem.heads_q, shape.blocks * shape.columns);
  }
  if (kernel.keys_shared) layout.reserve_key_partials(problem, plan.splits);

  const auto add = [&](KernelKind kind, int64_t work) {
    kernel.kind = kind;
    kernel.adds_query = problem.add_query && problem.wanted.query && kind != KernelKind::wide_backward;
    plan.steps.push_back({kernel, work});
  };
  kernel.hopper().by_heads = has_writers && request.shares_pairs;
  const bool rounds_grad_query = accumulates && !has_writers;
  const int64_t ctas_of_slots = divide_up(std::max(hopper_part.slots, query_tiles), slots_of_a_cta);
  add(KernelKind::key_schedule,
      rounds_grad_query ? std::max(ctas_of_slots, ctas_of_accumulators(query_tiles, gpu)) : ctas_of_slots);
  kernel.hopper().by_heads = false;
  const KernelSpec of_schedule = kernel;
  kernel.hopper().takes_head_factors = takes_head_factors(request, rounds_grad_query);
  kernel.hopper().takes_constant_factors = takes_constant_factors(request, rounds_grad_query);
  kernel.hopper().gradients = gradients;
  if (has_gradients) {
    const bool are_of_numbers = gradients == plan::FusedGradients::of_numbers;
    plan.parameters_in_steps = are_of_numbers ? request.number_gradients : request.score_gradients;
    kernel.wanted_parameters = plan.parameters_in_steps;
    kernel.hopper().own_elements = !are_of_numbers && request.own_elements;
  }
  // The L2 cache has a bias that the batch shares. A batch of one entry shares any bias.
  const bool is_shared_bias = request.shares_pairs && !problem.deterministic;
  kernel.hopper().prefetches_bias = request.bias_tile != BiasTile::none && !is_shared_bias && !is_wide;
  add(is_wide ? KernelKind::wide_backward : KernelKind::backward,
      std::min<int64_t>(hopper_part.slots, gpu.multiprocessors));
  plan.steps.back().overlaps_previous = true;
  if (rounds_grad_query) {
    kernel = of_schedule;
    // This kernel does not depend on what follows.
    kernel.has_output_offsets = false;
    kernel.keys_shared = kernel.has_batch_map = kernel.hopper().ordered = kernel.hopper().scales_entries = false;
    kernel.wants_grad_query = kernel.wants_grad_key = kernel.wants_grad_value = true;
    add(KernelKind::round_grad_query, ctas_of_accumulators(query_tiles, gpu));
  }
  if (request.has_guards) leave_guards_out(plan);
  return plan;
}

}  // namespace

std::string why_not_hopper_parameter_gradients(const PlanRequest& request) {
  const plan::Gpu& gpu = request.gpu;
  if (gpu.capability != 90) {
    return fmt::format("it needs compute capability 9.0, not {}.{}", gpu.capability / 10, gpu.capability % 10);
  }
  if (gpu.shared_bytes < hopper_shared_kilobytes * 1024) {
    return fmt::format("it needs {} KB of shared memory, not {}", hopper_shared_kilobytes, gpu.shared_bytes / 1024);
  }
  if (request.problem.dtype == DType::float32) return "it takes bfloat16 and float16";
  if (!request.aligned) return "some row does not begin at a multiple of 16 bytes";
  if (request.tensor_maps == plan::TensorMaps::unavailable) {
    return request.problem.has_pages()
               ? "TMA cannot address an operand of these strides; two pages have to be a whole number of rows apart"
               : "TMA cannot address an operand of these strides";
  }
  return {};
}

std::string why_not_hopper(const PlanRequest& request) {
  const std::string why_not = why_not_hopper_parameter_gradients(request);  // the conditions of all kernels
  const bool is_backward = request.problem.direction == Direction::backward;
  return why_not.empty() && is_backward ? why_not_backward(request) : why_not;
}

GpuPlan hopper_plan(const PlanRequest& request) {
  return request.problem.direction == Direction::forward ? plan_hopper_forward(request) : plan_hopper_backward(request);
}

void add_hopper_parameter_gradients(const PlanRequest& request, const Params& params,
                                    const activation::Function& function, KernelSpec kernel, GpuPlan& plan) {
  const Problem& problem = request.problem;
  const Side queries = queries_of(problem), keys = keys_of(problem);
  kernel.of_family = plan::HopperSpec();
  choose_hopper_parameter_tiles(kernel, sum_elements_of(params, function, problem.wanted.parameters));
  const bool keys_stay = keys.mean_length() <= int64_t{kernel.stages} * kernel.tile_keys;
  const bool has_one_tile = queries.form != Form::jagged && queries.mean_length() <= kernel.tile_queries;
  // The sums would differ from run to run with a dynamic order.
  hopper::TileDistribution& distribution = plan.parameter_tiles;
  distribution.order = keys_stay || has_one_tile ? hopper::TileOrder::contiguous : hopper::TileOrder::strided;
  const int64_t tiles = problem.heads_q * queries.most_tiles(kernel.tile_queries, problem.batch);
  const int64_t ctas = std::min<int64_t>(tiles, request.gpu.multiprocessors);
  distribution.ctas_per_range = ctas_per_range_of(problem, distribution.order, ctas);
  plan.parameter_steps.push_back({kernel, ctas});
}

}  // namespace gdpa::families
