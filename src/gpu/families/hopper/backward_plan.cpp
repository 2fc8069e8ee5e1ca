// The plan of backward on Hopper. docs/notebook/hopper-backward.md has the measurements.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/window_mask.cuh"
#include "gpu/families/hopper/plans.h"
#include "gpu/families/hopper/reads.h"
#include "gpu/kernels/add_rows.h"
#include "gpu/kernels/hopper_backward.h"
#include "gpu/kernels/hopper_wide_backward.h"
#include "gpu/kernels/key_schedule.h"
#include "gpu/kernels/round_grad_query.h"
#include "hopper/key_tile.cuh"

namespace gdpa::gpu {
namespace {

static_assert(thresholds::keys_of_a_backward_tile == hopper::backward_tile_keys);
static_assert(thresholds::keys_of_one_consumer == hopper::least_backward_tile_keys);

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
int whole_keys(const Problem& problem, const Gpu& gpu) {
  if (has_shared_queries(problem) || has_wide_heads(problem) || !problem.wanted.query) return 0;
  const int64_t queries = queries_of(problem).mean_length() * (problem.heads_q / problem.heads_k);
  const int64_t bytes = queries * (2 * problem.head_dim + problem.head_dim_v) * size_in_bytes(problem.dtype);
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
bool is_whole_or_short(const Problem& problem, const Gpu& gpu, int64_t short_keys) {
  const int64_t keys = known_length_of_keys(problem);
  return hopper::is_whole(problem.keeps_all_scores(), keys, whole_keys(problem, gpu)) ||
         (keys > 0 && keys <= short_keys);
}

/// Whether some of dQ is accumulated in fp32 in the workspace.
bool accumulates_grad_query(const Problem& problem, const Gpu& gpu) {
  return problem.wanted.query && !is_whole_or_short(problem, gpu, direct_keys(problem));
}

/// Whether the additions to dQ have one order without `ordered`: one CTA takes all tiles of a sequence, or a sequence
/// has two tiles, of which one stores.
bool adds_in_one_order(const Problem& problem, const Gpu& gpu) {
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
int64_t heads_per_group(const Problem& problem, const Gpu& gpu, int tile_queries) {
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
/// kernels/hopper/key_schedule.cuh).
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

}  // namespace

std::string why_not_hopper_backward(const Call& call) {
  const Problem& problem = call.problem;
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
    if (call.facts().reads_query_position) return "the batch shares keys, and f depends on the position of a query";
  }
  if (problem.deterministic && problem.wanted.query && has_shared_queries(problem)) {
    return "the batch shares the queries, and dQ has to be summed in one order";
  }
  return {};
}

namespace {

// --- the kernels -----------------------------------------------------------------------------------------------------

/// Stages of Q and dO: as many as fit in shared memory with K and V, f' in fp32 and dS twice, at most three.
int wide_backward_stages(const AttentionKernel& kernel) {
  constexpr int rows = hopper::wide_backward_tile_keys, block_columns = 64;
  constexpr int most = 3, queue_and_barriers = 1024;
  constexpr int scores = rows * hopper::backward_tile_queries;
  const int element_bytes = bytes_of(kernel.element);
  const int columns = round_up(kernel.head_dim, block_columns) + round_up(kernel.head_dim_v, block_columns);
  const int free = hopper_shared_kilobytes * 1024 - queue_and_barriers -
                   scores * (static_cast<int>(sizeof(float)) + 2 * element_bytes) - rows * columns * element_bytes;
  return std::min(most, free / (rows * columns * element_bytes));
}

/// Chooses the tiles, for queries of this mean length, or for all queries if the batch shares the keys. With head dims
/// up to 64, the registers suffice for tiles of 128 queries, unless the function needs many registers. Such tiles are
/// faster only for long sequences without a mask, because tiles of keys wait for each other in a window. No sequence
/// has more than `most_keys` keys (the largest number if it is not known). If these are at most 64, a tile has 64 keys.
void choose_tiles(bool needs_many_registers, bool keeps_all_scores, int64_t mean_queries, int64_t most_keys,
                  HopperBackwardKernel& kernel) {
  const bool has_registers = std::max(kernel.head_dim, kernel.head_dim_v) <= 64 && !needs_many_registers;
  const bool is_large = has_registers && keeps_all_scores && mean_queries >= thresholds::queries_of_large_tiles;
  kernel.tile_queries = is_large ? hopper::most_backward_tile_queries : hopper::backward_tile_queries;
  const bool is_wide = hopper::is_wide(kernel.head_dim, kernel.head_dim_v);
  const bool are_few = !is_wide && most_keys <= thresholds::keys_of_one_consumer;
  kernel.tile_keys = is_wide   ? hopper::wide_backward_tile_keys
                     : are_few ? hopper::least_backward_tile_keys
                               : hopper::backward_tile_keys;
  kernel.warps = 8;  // two warpgroups
  // The memory that K, V and dS of 64 keys leave free suffices for four stages of Q and dO. With four stages, an exact
  // function spills a register.
  const int stages_of_few_keys = needs_many_registers ? 3 : 4;
  kernel.stages = is_wide ? wide_backward_stages(kernel) : are_few ? stages_of_few_keys : 2;
}

/// Splits of all queries where the batch shares the keys, and one CTA takes `tile_keys` of them. Splits are equally
/// long: one for each multiprocessor, or up to four where fewer multiprocessors are then idle at the end.
int64_t splits_of_queries(const Call& call, int64_t tile_keys) {
  constexpr int64_t least_rows = 256;  // of a split
  const Problem& problem = call.problem;
  const int64_t multiprocessors = call.gpu.multiprocessors;
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

std::string reason_of_backward(const Call& call, bool accumulates) {
  const Problem& problem = call.problem;
  if (!problem.wanted.query) return "one CTA on each multiprocessor takes tiles of keys, and dQ is not computed";
  if (!accumulates) {
    return has_dq_semaphores(problem)
               ? "one CTA on each multiprocessor takes tiles of keys, and dQ is summed in its type"
               : "one CTA on each multiprocessor takes all keys of a sequence";
  }
  if (has_wide_heads(problem)) {
    return "one CTA on each multiprocessor takes tiles of keys, one warpgroup for dK and one for dV, and accumulates "
           "dQ in fp32";
  }
  if (has_shared_queries(problem)) {
    return "one CTA on each multiprocessor takes tiles of keys, and accumulates dQ, which the batch shares, in fp32";
  }
  return fmt::format(
      "one CTA on each multiprocessor takes tiles of keys, and accumulates dQ in fp32 where a sequence has more than "
      "{} keys",
      std::max(whole_keys(problem, call.gpu), direct_keys(problem)));
}

/// Whether the backward kernel multiplies dV and dS by constant factors. fp16 has too small a range for P and dS
/// without factors.
bool takes_constant_factors(const Call& call, bool rounds_grad_query) {
  // If the batch shares the queries, another kernel rounds dQ, and knows no such factor. The kernel of wide heads
  // multiplies each part of dQ.
  const Problem& problem = call.problem;
  return (has_wide_heads(problem) || !rounds_grad_query) && problem.dtype == DType::bfloat16 &&
         accuracy_of(problem) == Accuracy::fast;
}

/// Whether the backward kernel multiplies dV and dS by factors of the head. The sum of a gradient over several query
/// heads has one factor for all heads, and dQ of wide heads has constant factors only.
bool takes_head_factors(const Call& call, bool rounds_grad_query) {
  const Problem& problem = call.problem;
  return call.facts().reads_numbers && !has_wide_heads(problem) && problem.heads_q == problem.heads_k &&
         takes_constant_factors(call, rounds_grad_query);
}

/// The gradients of tensors that the backward kernel computes, and the tensors, bit n: tensor n.
struct Fused {
  FusedGradients gradients = FusedGradients::none;
  unsigned tensors = 0;
};

/// The kernel needs dS for them, and the registers of a tile of 64 queries and head dims up to 128. Their sums end with
/// an entry, and the kernel does not run if keys overlap.
Fused fused_gradients(const Call& call) {
  const Problem& problem = call.problem;
  if (problem.wanted.parameters == 0 || problem.has_batch_map || problem.has_key_gaps) return {};
  if (has_wide_heads(problem) || !(problem.wanted.query || problem.wanted.key)) return {};
  if (const unsigned numbers = number_gradients(problem, call.expressions.function); numbers != 0) {
    return {FusedGradients::of_numbers, numbers};
  }
  const unsigned of_scores = score_gradients(problem, call.expressions.function);
  return {of_scores != 0 ? FusedGradients::of_scores : FusedGradients::none, of_scores};
}

constexpr int64_t slots_of_a_cta = 64;

/// The CTAs of a kernel that clears or rounds the accumulators of dQ of `query_tiles` query tiles. If these are few, a
/// CTA has fewer of them, so that each multiprocessor has two CTAs. Each of the 8 warps of a CTA needs a query tile.
int64_t ctas_of_accumulators(int64_t query_tiles, const Gpu& gpu) {
  constexpr int64_t least_slots = 8, ctas_of_multiprocessor = 2;
  const int64_t wanted = std::max(divide_up(query_tiles, slots_of_a_cta), ctas_of_multiprocessor * gpu.multiprocessors);
  return std::min(wanted, divide_up(query_tiles, least_slots));
}

/// Whether a first pass leaves guards out (hopper::Pass). It finds values that are not finite in dK or dV. Infinities
/// of f' do not reach dV, and dQ, a sum over all keys, is not checked. So guards stay where f' matters for dQ only.
bool has_second_pass(const Call& call) {
  const WantedGradients& wanted = call.problem.wanted;
  const bool shows_in_gradients = wanted.key || (wanted.value && !wanted.query);
  return call.facts().has_removable_guards && shows_in_gradients;
}

/// The launches of the schedule and of the main kernel, twice if there are two passes.
template <class Main>
void add_passes(bool has_two_passes, const Gpu& gpu, const HopperBackwardPlan& part, KeySchedule schedule,
                int64_t ctas_of_schedule, Main main, GpuPlan& plan) {
  const int64_t ctas = std::min<int64_t>(part.slots, gpu.multiprocessors);
  main.pass = has_two_passes ? hopper::Pass::first : hopper::Pass::only;
  plan.launches.push_back(launch(schedule, ctas_of_schedule, part));
  plan.add_products(launch(main, ctas, part).overlapping_previous(), main);
  if (!has_two_passes) return;
  schedule.pass = main.pass = hopper::Pass::second;
  // The schedule of the second pass clears the sums of the first one.
  schedule.cleared_parameters = plan.parameters.in_backward;
  if (schedule.cleared_parameters != 0) schedule.sum = plan.parameters.sum;
  plan.launches.push_back(launch(schedule, ctas_of_schedule, part).overlapping_previous());
  plan.launches.push_back(launch(main, ctas, part).overlapping_previous());
}

/// Whether scores need no product with the scale, because f is homogeneous and dV, dS and dQ take a power of it.
bool takes_scale_out(const Call& call) {
  const std::optional<double> factor = factor_of_scale(call);
  return factor && is_factor(*factor / call.params.scale);
}

}  // namespace

// key_schedule, the main kernel with one persistent CTA on each multiprocessor, and the rounding of the accumulators of
// dQ that it does not round itself.
void add_hopper_backward(const Call& call, GpuPlan& plan) {
  const Problem& problem = call.problem;
  const Gpu& gpu = call.gpu;
  const Side queries = queries_of(problem), keys = keys_of(problem);
  const bool is_wide = has_wide_heads(problem);
  const bool accumulates = accumulates_grad_query(problem, gpu);
  const bool has_writers = has_dq_semaphores(problem);

  HopperBackwardKernel kernel{attention_kernel_for(call)};
  kernel.keys_shared = has_shared_keys(problem);
  kernel.has_batch_map = problem.has_batch_map;
  const Fused fused = fused_gradients(call);
  const bool has_gradients = fused.gradients != FusedGradients::none;
  TileLengths lengths = tile_lengths_of(problem);
  if (kernel.keys_shared && !problem.deterministic) lengths.mean_queries = problem.rows_q;  // one stream of queries
  choose_tiles(has_gradients || needs_many_registers(call), problem.keeps_all_scores(), lengths.mean_queries,
               lengths.most_keys, kernel);
  choose_mask(call, true, kernel, plan);
  kernel.wants_grad_query = problem.wanted.query;
  kernel.wants_grad_key = problem.wanted.key;
  kernel.wants_grad_value = problem.wanted.value;
  kernel.ordered = problem.deterministic && has_writers;
  kernel.has_dq_semaphores = has_writers;
  kernel.scales_entries = problem.has_batch_map && !has_one_scale(problem);

  const bool rounds_grad_query = accumulates && !has_writers;
  plan.attention_adds = epilogue_may_add(problem) && !rounds_grad_query;
  if (plan.attention_adds) kernel.epilogue = Epilogue::addend;

  plan.deterministic = has_writers ? kernel.ordered || adds_in_one_order(problem, gpu) : !accumulates;
  plan.reason = reason_of_backward(call, accumulates);
  if (kernel.keys_shared) plan.splits = splits_of_queries(call, kernel.tile_keys);
  HopperBackwardPlan part{};
  part.whole_keys = whole_keys(problem, gpu);
  part.direct_keys = direct_keys(problem);
  part.queries_shared = has_shared_queries(problem);
  part.masks_of_heads = problem.mask_depends_on_head;
  const int64_t slots = problem.heads_k * keys.most_tiles(kernel.tile_keys, plan.splits);
  part.slots = static_cast<unsigned>(slots);
  // Rows of dQ with accumulators, and rows that no sequence has.
  part.prepares_grad_query = problem.wanted.query && (problem.query_form == Form::jagged || accumulates || has_writers);
  const int64_t query_tiles =
      part.prepares_grad_query ? problem.heads_q * queries.most_tiles(kernel.tile_queries, 1) : 0;

  part.slot_counter = plan.workspace.reserve(3 * sizeof(unsigned));
  const int64_t end_of_counter = plan.workspace.bytes();
  part.key_tiles = plan.workspace.reserve(slots * static_cast<int64_t>(sizeof(hopper::KeyTile<WindowMask>)));
  plan.clear(part.slot_counter, has_writers ? plan.workspace.bytes() : end_of_counter);
  if (problem.has_batch_map) {
    part.segments = plan.workspace.reserve(bytes_of_segments(problem));
    part.most_key_tiles = static_cast<int>(most_key_tiles(problem));
  }
  if (has_writers) {
    const int64_t semaphores_per_head = queries.most_tiles(kernel.tile_queries, 1);
    part.semaphores_per_head = static_cast<int>(semaphores_per_head);
    part.heads_per_group = static_cast<int>(heads_per_group(problem, gpu, kernel.tile_queries));
    part.dq_semaphores =
        plan.workspace.reserve(problem.heads_q * semaphores_per_head * static_cast<int64_t>(sizeof(unsigned)));
  }
  if (accumulates) {
    const hopper::AccumulatorShape shape =
        hopper::accumulator_shape_of(kernel.tile_queries, kernel.head_dim, kernel.head_dim_v);
    part.grad_query = plan.workspace.reserve(problem.rows_q * problem.heads_q * shape.blocks * shape.columns *
                                             static_cast<int64_t>(sizeof(float)));
  }
  if (kernel.keys_shared) plan.reserve_key_partials(call);

  const int64_t ctas_of_slots = divide_up(std::max(slots, query_tiles), slots_of_a_cta);
  const int64_t ctas_of_schedule =
      rounds_grad_query ? std::max(ctas_of_slots, ctas_of_accumulators(query_tiles, gpu)) : ctas_of_slots;
  const bool shares_bias = shares_pairs(call);
  const KeySchedule schedule{kernel, has_writers && shares_bias};
  FunctionForm function = function_form_for(call);
  const bool takes_constants = takes_constant_factors(call, rounds_grad_query);
  const bool has_two_passes = has_second_pass(call);
  if (is_wide) {
    function.scales_scores = !(takes_constants && !has_two_passes && takes_scale_out(call));
    add_passes(has_two_passes, gpu, part, schedule, ctas_of_schedule,
               HopperWideBackward{kernel, function, takes_constants}, plan);
  } else {
    HopperBackward main{kernel, function, takes_head_factors(call, rounds_grad_query), takes_constants};
    main.gradients = fused.gradients;
    if (has_gradients) {
      plan.parameters.in_backward = main.wanted_parameters = fused.tensors;
      plan.parameters.sum = main.sum = parameter_sum_of(call, fused.tensors);
      main.own_elements = fused.gradients == FusedGradients::of_scores && has_own_elements(call);
    }
    main.scales_scores =
        !(takes_constants && !has_two_passes && fused.gradients != FusedGradients::of_numbers && takes_scale_out(call));
    // The L2 cache has a bias that the batch shares. A batch of one entry shares any bias.
    const bool is_in_cache = shares_bias && !problem.deterministic;
    main.prefetches_bias = !is_in_cache && call.facts().reads > 0 && dense_bias_of(call).tile != BiasTile::none;
    add_passes(has_two_passes, gpu, part, schedule, ctas_of_schedule, main, plan);
  }
  if (!rounds_grad_query) return;
  RoundGradQuery rounding{kernel};
  // This kernel does not depend on what follows.
  rounding.has_output_offsets = false;
  rounding.keys_shared = rounding.has_batch_map = rounding.ordered = rounding.scales_entries = false;
  rounding.wants_grad_query = rounding.wants_grad_key = rounding.wants_grad_value = true;
  plan.launches.push_back(launch(rounding, ctas_of_accumulators(query_tiles, gpu), part));
}

}  // namespace gdpa::gpu
