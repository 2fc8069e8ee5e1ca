// The GPU plan; see gpu_plan.h. The tiles are chosen in gpu_tiles.cpp.
#include "plan/gpu_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "activation/degree.h"
#include "hopper/arguments.cuh"
#include "plan/gpu_tiles.h"
#include "plan/hopper_plan.h"
#include "plan/thresholds.h"

namespace gdpa::plan {
namespace {

constexpr int64_t column_group = 16;  // fp32 sums pad a row of a head to this many columns, as kernels/ does

int64_t divide_up(int64_t count, int64_t divisor) { return (count + divisor - 1) / divisor; }

GpuElement element_of(DType dtype, Float32Products products) {
  if (dtype == DType::bfloat16) return GpuElement::bfloat16;
  if (dtype == DType::float16) return GpuElement::float16;
  return products == Float32Products::one ? GpuElement::tensor_float32 : GpuElement::float32;
}

/// One side of the problem: how its rows become tiles.
struct Side {
  Form form;
  int64_t rows;  ///< of the operand
  int64_t batch;

  int64_t length() const { return form == Form::dense && batch > 0 ? rows / batch : rows; }
  int64_t mean_length() const { return form == Form::shared ? rows : rows / std::max<int64_t>(1, batch); }

  /// The most tiles that one head can have over all batch entries, or over `parts` of the batch where the side is
  /// shared. The rows of a jagged side before the first offset and after the last one have tiles too.
  int64_t most_tiles(int64_t tile, int64_t parts) const {
    if (form == Form::jagged) return rows / tile + batch + 2;
    return (form == Form::shared ? parts : batch) * divide_up(length(), tile);
  }
};

/// Parts into which the batch is cut, so that the CTAs that own a shared operand fill the device.
int64_t parts_for(const Side& side, int64_t heads, int64_t tile, const Gpu& gpu, int ctas) {
  const int64_t owners = std::max<int64_t>(1, heads * divide_up(side.length(), tile));
  const int64_t wanted = divide_up(int64_t{2} * gpu.multiprocessors * ctas, owners);
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, side.batch));
}

class Planner {
 public:
  Planner(const Problem& problem, const Gpu& gpu, FunctionRegisters function, bool aligned, Float32Products products,
          TensorMaps tensor_maps)
      : problem_(problem),
        gpu_(gpu),
        function_(function),
        tensor_maps_(tensor_maps),
        queries_{problem.query_form, problem.rows_q, problem.batch},
        keys_{problem.key_form, problem.rows_k, problem.batch} {
    base_.element = element_of(problem.dtype, products);
    base_.head_dim = static_cast<int>(problem.head_dim);
    base_.head_dim_v = static_cast<int>(problem.head_dim_v);
    base_.aligned = aligned;
  }

  GpuPlan forward() {
    KernelSpec kernel = base_;
    kernel.kind = KernelKind::forward;
    const std::string obstacle = why_not_hopper(problem_, gpu_, kernel, tensor_maps_);
    if (obstacle.empty()) return hopper_forward(kernel);
    plan_.reason = "one CTA owns a tile of queries and the keys pass by; not the Hopper kernel: " + obstacle;
    choose_tiles(kernel, gpu_, function_);
    plan_.steps.push_back({kernel, problem_.heads_q * queries_.most_tiles(kernel.tile_queries, problem_.batch)});
    return plan_;
  }

  GpuPlan backward() {
    const bool keys_shared = problem_.shares_keys(), queries_shared = problem_.shares_queries();
    // Additions of many batch entries to the few rows of a shared query would wait for each other.
    const WantedGradients& wanted = problem_.wanted;
    const bool wants_keys = wanted.key || wanted.value;
    const bool own_query_kernel = wanted.query && (problem_.deterministic || queries_shared || !wants_keys);
    const bool adds_to_query = wanted.query && !own_query_kernel;
    plan_.deterministic = !adds_to_query;
    plan_.reason = own_query_kernel ? "dQ has a kernel of its own, which sums in one order"
                   : adds_to_query  ? "one CTA owns a tile of keys and adds to sums of dQ"
                                    : "one CTA owns a tile of keys, and dQ is not wanted";

    KernelSpec kernel = base_;
    kernel.kind = KernelKind::backward;
    kernel.reduce_grad_query = adds_to_query;
    kernel.keys_shared = keys_shared;
    const std::string obstacle = why_not_hopper(problem_, gpu_, kernel, tensor_maps_);
    if (obstacle.empty()) return hopper_backward(kernel);
    plan_.reason += "; not the Hopper kernel: " + obstacle;
    kernel.wants_grad_key = wanted.key;
    kernel.wants_grad_value = wanted.value;
    choose_tiles(kernel, gpu_, function_);
    KernelSpec query_kernel = base_;
    query_kernel.kind = KernelKind::backward_query;
    query_kernel.queries_shared = queries_shared;
    choose_tiles(query_kernel, gpu_, function_);
    if (keys_shared && wants_keys)
      plan_.parts = parts_for(keys_, problem_.heads_k, kernel.tile_keys, gpu_, kernel.ctas);
    const bool sums_queries = own_query_kernel && queries_shared;
    if (sums_queries) {
      plan_.parts = parts_for(queries_, problem_.heads_q, query_kernel.tile_queries, gpu_, query_kernel.ctas);
    }

    lay_out_workspace(adds_to_query, sums_queries, keys_shared);
    if (wants_keys) {
      plan_.steps.push_back({kernel, problem_.heads_k * keys_.most_tiles(kernel.tile_keys, plan_.parts)});
    }
    if (own_query_kernel) {
      plan_.steps.push_back(
          {query_kernel, problem_.heads_q * queries_.most_tiles(query_kernel.tile_queries, plan_.parts)});
    }
    return plan_;
  }

 private:
  /// One CTA for each multiprocessor, which stays there.
  GpuPlan hopper_forward(KernelSpec& kernel) {
    constexpr int64_t unknown = std::numeric_limits<int64_t>::max();
    const int64_t most_queries = queries_.form == Form::jagged ? unknown : queries_.mean_length();
    choose_hopper_tiles(kernel, most_queries, keys_.mean_length());
    const bool keys_stay = keys_.mean_length() <= int64_t{kernel.stages} * kernel.tile_keys;
    const bool has_one_tile = most_queries <= kernel.tile_queries;
    plan_.in_runs = keys_stay || has_one_tile;
    plan_.reason = keys_stay ? "keys mostly fit shared memory: they stay there while tiles of queries pass by"
                   : has_one_tile
                       ? "one tile of queries for each head: CTAs take as many keys each, whatever their sequences have"
                       : "one CTA on each multiprocessor takes tiles of queries, and the keys pass by";
    const int64_t tiles = problem_.heads_q * queries_.most_tiles(kernel.tile_queries, problem_.batch);
    plan_.steps.push_back({kernel, std::min<int64_t>(tiles, gpu_.multiprocessors)});
    return plan_;
  }

  /// A schedule, the main kernel with one CTA for each multiprocessor, and the rounding of sums that it left of dQ.
  GpuPlan hopper_backward(KernelSpec& kernel) {
    constexpr int64_t places_of_a_cta = 64;
    const bool is_wide = hopper::is_wide(kernel.head_dim, kernel.head_dim_v);
    choose_hopper_backward_tiles(kernel, function_, problem_.mask,
                                 problem_.shares_keys() ? problem_.rows_q : queries_.mean_length());
    kernel.reduce_grad_query = false;
    const bool has_sums = sums_grad_query(problem_, gpu_);
    kernel.wants_grad_query = problem_.wanted.query;
    kernel.wants_grad_key = problem_.wanted.key;
    kernel.wants_grad_value = problem_.wanted.value;
    kernel.ordered = problem_.deterministic && has_sums;
    kernel.sums_begun = begins_sums(problem_, gpu_);
    plan_.deterministic = !has_sums || kernel.ordered;
    plan_.reason =
        !problem_.wanted.query ? "one CTA on each multiprocessor takes tiles of keys, and dQ is not computed"
        : !has_sums            ? "one CTA on each multiprocessor takes all keys of a sequence, and stores dQ at once"
        : is_wide
            ? "one CTA on each multiprocessor takes tiles of keys, one warpgroup dK and one dV, and adds to sums of dQ"
        : problem_.shares_queries()
            ? "one CTA on each multiprocessor takes tiles of keys, and adds to sums of dQ, which the batch shares"
            : fmt::format(
                  "one CTA on each multiprocessor takes tiles of keys, and adds to sums of dQ where a sequence has "
                  "more "
                  "than {} keys or a mask",
                  direct_keys(problem_, gpu_));
    plan_.direct_keys = direct_keys(problem_, gpu_);
    if (kernel.keys_shared) {
      plan_.parts = parts_of_queries(std::max(plan_.direct_keys, kernel.tile_keys));
    }
    const int64_t tiles = problem_.heads_k * keys_.most_tiles(kernel.tile_keys, plan_.parts);
    plan_.has_rows_left = has_rows_to_prepare(problem_, gpu_);
    const int64_t query_tiles =
        plan_.has_rows_left ? problem_.heads_q * queries_.most_tiles(kernel.tile_queries, 1) : 0;
    plan_.places = tiles;
    GpuWorkspace& workspace = plan_.workspace;
    workspace.places_taken = take(3 * sizeof(unsigned));
    workspace.zeroed_bytes = workspace.bytes;
    workspace.key_tiles = take(tiles * static_cast<int64_t>(sizeof(hopper::KeyTile)));
    if (kernel.sums_begun) workspace.zeroed_bytes = workspace.bytes;
    const hopper::SumsShape sums = hopper::sums_shape(kernel.tile_queries, kernel.head_dim, kernel.head_dim_v);
    if (kernel.sums_begun) {
      plan_.turns_of_head = queries_.most_tiles(kernel.tile_queries, 1);
      plan_.heads_of_window = heads_of_window(problem_, gpu_, kernel.tile_queries);
      workspace.turns = take(problem_.heads_q * plan_.turns_of_head * static_cast<int64_t>(sizeof(unsigned)));
    }
    if (has_sums) workspace.grad_query = take_sums(problem_.rows_q, problem_.heads_q, sums.blocks * sums.columns);
    if (kernel.keys_shared) take_key_slabs();
    const auto add = [&](KernelKind kind, int64_t work) {
      kernel.kind = kind;
      plan_.steps.push_back({kernel, work});
    };
    add(KernelKind::key_schedule, divide_up(std::max(tiles, query_tiles), places_of_a_cta));
    add(is_wide ? KernelKind::wide_backward : KernelKind::backward, std::min<int64_t>(tiles, gpu_.multiprocessors));
    const bool rounds = has_sums && !kernel.sums_begun;
    kernel.keys_shared = kernel.ordered = false;  // that kernel has no use for them
    kernel.wants_grad_query = kernel.wants_grad_key = kernel.wants_grad_value = true;
    if (rounds) add(KernelKind::round_grad_query, divide_up(query_tiles, places_of_a_cta));
    return plan_;
  }

  /// Parts into which all queries are cut where the batch shares the keys, `keys` of which one CTA takes. They are
  /// equally long: one piece of work for each multiprocessor, or up to four where that leaves fewer of them idle at the
  /// end.
  int64_t parts_of_queries(int64_t keys) const {
    constexpr int64_t least_rows = 256;  // of a part
    const int64_t owners = std::max<int64_t>(1, problem_.heads_k * divide_up(keys_.length(), keys));
    const int64_t most = std::max<int64_t>(1, problem_.rows_q / least_rows);
    int64_t best = 1;
    double best_share = 0;
    for (int64_t rounds = 1; rounds <= 4; ++rounds) {
      constexpr double worth_a_round = 1.05;
      const int64_t parts = std::clamp<int64_t>(rounds * gpu_.multiprocessors / owners, 1, most);
      const int64_t pieces = owners * parts;
      const double share = static_cast<double>(pieces) /
                           static_cast<double>(divide_up(pieces, gpu_.multiprocessors) * gpu_.multiprocessors);
      if (share > best_share * worth_a_round) {
        best = parts;
        best_share = share;
      }
    }
    return best;
  }

  static int64_t aligned_bytes(int64_t bytes) { return divide_up(bytes, Workspace::alignment) * Workspace::alignment; }

  /// The place in the workspace that the next bytes get.
  int64_t take(int64_t bytes) {
    const int64_t at = plan_.workspace.bytes;
    plan_.workspace.bytes += aligned_bytes(bytes);
    return at;
  }
  int64_t take_sums(int64_t rows, int64_t heads, int64_t columns) {
    return take(rows * heads * padded_columns(columns) * static_cast<int64_t>(sizeof(float)));
  }

  /// Of dK and dV of shared keys, for each part of the batch.
  void take_key_slabs() {
    if (problem_.wanted.key)
      plan_.workspace.grad_key = take_sums(plan_.parts * problem_.rows_k, problem_.heads_k, problem_.head_dim);
    if (problem_.wanted.value)
      plan_.workspace.grad_value = take_sums(plan_.parts * problem_.rows_k, problem_.heads_k, problem_.head_dim_v);
  }

  void lay_out_workspace(bool query_sum, bool query_slabs, bool key_slabs) {
    GpuWorkspace& workspace = plan_.workspace;
    if (query_sum) {
      workspace.grad_query = take_sums(problem_.rows_q, problem_.heads_q, problem_.head_dim);
      workspace.zeroed_bytes = workspace.bytes;
    }
    if (query_slabs) {
      workspace.grad_query = take_sums(plan_.parts * problem_.rows_q, problem_.heads_q, problem_.head_dim);
    }
    if (key_slabs) take_key_slabs();
  }

  const Problem& problem_;
  const Gpu& gpu_;
  FunctionRegisters function_;
  TensorMaps tensor_maps_;
  Side queries_;
  Side keys_;
  KernelSpec base_;
  GpuPlan plan_;
};

}  // namespace

FunctionRegisters registers_of(const activation::Program& program, Accuracy accuracy) {
  using activation::Operation;
  const bool is_long = std::any_of(program.steps.begin(), program.steps.end(), [&](const activation::Step& step) {
    switch (step.operation) {
      case Operation::power:
      case Operation::expm1:
      case Operation::log1p:
        return true;  // there is no fast form
      case Operation::erf:
      case Operation::softplus:
      case Operation::sin:
      case Operation::cos:
        return accuracy == Accuracy::exact;
      default:
        return false;
    }
  });
  return is_long ? FunctionRegisters::many : FunctionRegisters::few;
}

Accuracy accuracy_of(const Problem& problem) {
  if (problem.dtype == DType::float32) return Accuracy::exact;
  const bool is_dense = problem.query_form == Form::dense && problem.key_form == Form::dense;
  const int64_t batch = std::max<int64_t>(1, problem.batch);
  const int64_t rows_q = problem.rows_q * (problem.query_form == Form::shared ? batch : 1);
  const int64_t most_keys = is_dense ? divide_up(problem.rows_k, batch) : problem.rows_k;  // that a query can have
  const auto scores = static_cast<double>(problem.heads_q) * static_cast<double>(rows_q) *
                      static_cast<double>(most_keys);  // exact up to 2^53, and never overflows
  return scores <= thresholds::scores_of_exact_calls ? Accuracy::exact : problem.accuracy;
}

int64_t padded_columns(int64_t columns) { return divide_up(columns, column_group) * column_group; }

GpuStep reduction(const Problem& problem, const Gpu& gpu, bool aligned, int64_t columns, int64_t rows) {
  constexpr int64_t threads = 256, ctas_per_multiprocessor = 32;
  KernelSpec kernel;
  kernel.kind = KernelKind::reduce;
  kernel.element = element_of(problem.dtype, Float32Products::three);
  kernel.head_dim = static_cast<int>(columns);
  kernel.aligned = aligned;
  const int64_t pieces = rows * padded_columns(columns) / column_group;
  return {kernel, std::min(divide_up(pieces, threads), ctas_per_multiprocessor * gpu.multiprocessors)};
}

GpuPlan gpu_plan(const Problem& problem, const Gpu& gpu, FunctionRegisters function, bool aligned,
                 Float32Products products, TensorMaps tensor_maps) {
  Planner planner(problem, gpu, function, aligned, products, tensor_maps);
  return problem.direction == Direction::forward ? planner.forward() : planner.backward();
}

void take_scale_out(GpuPlan& plan, const activation::Program& value, double scale) {
  // bfloat16 and fp32 reach 2^128: with a factor in these bounds, neither a weight nor a sum overflows where the result
  // is below 2^96, nor does one vanish that is above 2^-94. fp16 ends at 65504, which scores of head dim 128 do reach.
  constexpr double least = 0x1p-32, most = 0x1p32;
  KernelSpec& kernel = plan.steps.front().kernel;
  const std::optional<double> degree = activation::degree_of(value);
  if (kernel.kind != KernelKind::forward || kernel.element == GpuElement::float16 || !degree || !(scale > 0)) return;
  const double factor = std::pow(scale, *degree);
  if (!(factor >= least && factor <= most)) return;
  kernel.scales_scores = false;
  plan.output_factor = factor;
}

void leave_guards_out(GpuPlan& plan) {
  if (plan.places == 0) return;
  // The first pass finds values that are not finite in dK or dV. Infinities of f' do not reach dV, and dQ, a sum over
  // all keys, is not looked at.
  const KernelSpec& wanted = plan.steps[1].kernel;
  const bool shows_in_gradients = wanted.wants_grad_key || (wanted.wants_grad_value && !wanted.wants_grad_query);
  if (!shows_in_gradients) return;
  GpuStep schedule = plan.steps[0], backward = plan.steps[1];
  plan.steps[1].kernel.pass = hopper::BackwardPass::first;
  schedule.kernel.pass = backward.kernel.pass = hopper::BackwardPass::again;
  plan.steps.insert(plan.steps.begin() + 2, {schedule, backward});
}

}  // namespace gdpa::plan
