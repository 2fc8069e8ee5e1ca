// See hopper_plan.h.
#include "plan/hopper_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "hopper/arguments.cuh"
#include "plan/thresholds.h"

namespace gdpa::plan {
namespace {

constexpr int shared_kilobytes = 227;

int widest(const KernelSpec& kernel) { return std::max(kernel.head_dim, kernel.head_dim_v); }

int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

/// What bounds the tiles of head dims above 128: the registers of a thread of a warpgroup, which holds 64 rows of each
/// operand, and shared memory.
struct WideTile {
  const KernelSpec& kernel;

  int operand_registers() const {
    const int query = kernel.query_in_registers ? round_up(kernel.head_dim, 16) / 4 : 0;
    const int scores = kernel.tile_keys / 2, weights = kernel.tile_keys / 4;
    return query + scores + weights + hopper::output_columns(kernel.head_dim_v) / 2;
  }

  int shared_bytes() const {
    constexpr int element_bytes = 2, block_columns = 64, ring_and_barriers = 3072;
    const int columns = round_up(kernel.head_dim, block_columns),
              columns_v = round_up(kernel.head_dim_v, block_columns);
    const int query = kernel.query_in_registers ? std::max(columns, columns_v) : columns;  // O takes its place
    return (kernel.query_stages * kernel.tile_queries * query +
            kernel.stages * kernel.tile_keys * (columns + columns_v)) *
               element_bytes +
           ring_and_barriers;
  }

  bool fits() const {
    // Of 224 registers the compiler needs 32 for all else, and more beside both Q and 256 columns of O.
    const bool has_room = !kernel.query_in_registers || hopper::output_columns(kernel.head_dim_v) < 256;
    return has_room && operand_registers() <= 192 && shared_bytes() <= shared_kilobytes * 1024;
  }
};

/// Takes as many keys as fit; false where it cannot be 64.
bool take_keys(KernelSpec& kernel, bool query_in_registers) {
  kernel.query_in_registers = query_in_registers;
  for (kernel.tile_keys = 128; kernel.tile_keys >= 64; kernel.tile_keys -= 16) {
    if (WideTile{kernel}.fits()) return true;
  }
  return false;
}

/// Q in registers where there is room for it, then as many keys as fit two buffers, then more buffers.
void choose_wide_tiles(KernelSpec& kernel) {
  kernel.stages = 2;
  kernel.query_stages = 1;
  if (!take_keys(kernel, true)) take_keys(kernel, false);
  for (int* const buffers : {&kernel.stages, &kernel.query_stages}) {
    ++*buffers;
    if (!WideTile{kernel}.fits()) --*buffers;
  }
}

/// Buffers of Q and of dO, as many as are of use and fit beside K and V, f' in fp32 and dS twice.
int wide_backward_stages(const KernelSpec& kernel) {
  constexpr int rows = hopper::wide_backward_tile_keys, element_bytes = 2, block_columns = 64;
  constexpr int most = 3, ring_and_barriers = 1024;
  constexpr int scores = rows * hopper::backward_tile_queries;
  const int columns = round_up(kernel.head_dim, block_columns) + round_up(kernel.head_dim_v, block_columns);
  const int rest = shared_kilobytes * 1024 - ring_and_barriers -
                   scores * (static_cast<int>(sizeof(float)) + 2 * element_bytes) - rows * columns * element_bytes;
  return std::min(most, rest / (rows * columns * element_bytes));
}

std::string why_not_backward(const Problem& problem, const Gpu& gpu, const KernelSpec& kernel) {
  if (hopper::is_wide(kernel.head_dim, kernel.head_dim_v)) {
    if (problem.shares_keys()) return "the batch shares keys, and a head dim is above 128";
    if (problem.deterministic && problem.wanted.query) {
      return "dQ shall be summed in one order, and a head dim is above 128";
    }
  } else if (problem.shares_keys()) {
    // The queries of a part of the batch are taken for one sequence.
    if (problem.query_form != Form::jagged) return "the batch shares keys, and queries are not packed";
    if (!problem.mask.keeps_all()) return "the batch shares keys, and there is a mask";
    const bool has_one_scale =
        problem.out_scale == OutScale::Kind::number || problem.out_scale == OutScale::Kind::reciprocal_length_k;
    if (!has_one_scale) return "the batch shares keys, and its entries differ in out_scale";
  }
  const bool shares = problem.shares_queries() || problem.shares_keys();
  if (problem.deterministic && problem.wanted.query && shares && !is_all_direct(problem, gpu)) {
    return "the batch shares an operand, and dQ shall be summed in one order";
  }
  return {};
}

}  // namespace

std::string why_not_hopper(const Problem& problem, const Gpu& gpu, const KernelSpec& kernel, TensorMaps tensor_maps) {
  if (gpu.capability != 90) {
    return fmt::format("it needs compute capability 9.0, not {}.{}", gpu.capability / 10, gpu.capability % 10);
  }
  if (gpu.shared_bytes < shared_kilobytes * 1024) {
    return fmt::format("it needs {} KB of shared memory, not {}", shared_kilobytes, gpu.shared_bytes / 1024);
  }
  if (problem.dtype == DType::float32) return "it takes bfloat16 and float16";
  if (!kernel.aligned) return "some row does not begin at a multiple of 16 bytes";
  if (tensor_maps == TensorMaps::unavailable) return "the copy engine does not reach an operand of these strides";
  return problem.direction == Direction::backward ? why_not_backward(problem, gpu, kernel) : std::string();
}

void choose_hopper_tiles(KernelSpec& kernel, int64_t most_queries, int64_t mean_keys) {
  const bool is_narrow = widest(kernel) <= 64;
  const bool are_few = mean_keys <= (is_narrow ? thresholds::few_keys_of_narrow_heads : thresholds::few_keys);
  const bool is_wide = widest(kernel) > 128;
  const int warpgroups = !is_wide && most_queries <= thresholds::queries_of_one_warpgroup ? 1 : 2;
  kernel.family = KernelFamily::hopper;
  kernel.tile_queries = warpgroups * hopper::warpgroup_rows;
  kernel.warps = warpgroups * 4;
  if (is_wide) return choose_wide_tiles(kernel);
  kernel.query_in_registers = true;
  kernel.tile_keys = !are_few ? (is_narrow ? 192 : 128) : mean_keys <= thresholds::keys_of_a_short_tile ? 64 : 128;
  if (warpgroups == 1) {
    // Tiles that follow each other seldom have the same keys: as many buffers as there is room for.
    kernel.stages = is_narrow || kernel.tile_keys == 64 ? 4 : 3;
    kernel.query_stages = 2;
  } else {
    kernel.stages = !are_few ? 3 : is_narrow || kernel.tile_keys == 64 ? 4 : 2;
    kernel.query_stages = are_few ? 3 : 1;
  }
}

int direct_keys(const Problem& problem, const Gpu& gpu) {
  const bool is_wide = hopper::is_wide(static_cast<int>(problem.head_dim), static_cast<int>(problem.head_dim_v));
  if (problem.shares_queries() || is_wide || !problem.wanted.query) return 0;
  // What a CTA has at the end while others have none shall be little beside all that it had.
  const int64_t heads = problem.batch * problem.heads_k;
  // Of shared keys, dQ of a part of the batch has left the second-level cache before the next tile adds to it.
  const int most =
      problem.shares_keys() ? thresholds::direct_tiles_of_few_heads : thresholds::direct_tiles_of_many_heads;
  const int tiles = heads < thresholds::few_heads_per_multiprocessor * gpu.multiprocessors ? thresholds::direct_tiles
                    : heads < thresholds::many_heads_per_multiprocessor * gpu.multiprocessors
                        ? thresholds::direct_tiles_of_few_heads
                        : most;
  return tiles * hopper::backward_tile_keys;
}

int64_t heads_of_window(const Problem& problem, const Gpu& gpu, int tile_queries) {
  // So many that a CTA has gone `ahead` steps when its head's next tile of keys is begun, which waits for it in
  // deterministic mode, else for the first tile alone. More would keep less of them in the second-level cache; and each
  // tile looks at the entries of a window.
  const int64_t ahead = problem.deterministic ? 4 : 2;
  constexpr int64_t least = 8, most = 64;
  const int64_t entries = problem.query_form == Form::shared ? 1 : std::max<int64_t>(1, problem.batch);
  const int64_t tiles = (problem.rows_q / entries + tile_queries - 1) / tile_queries;
  const int64_t steps = std::max<int64_t>(1, tiles * (problem.heads_q / problem.heads_k));
  return std::clamp(ahead * gpu.multiprocessors / steps, least, most);
}

bool begins_sums(const Problem& problem, const Gpu& gpu) {
  const bool is_wide = hopper::is_wide(static_cast<int>(problem.head_dim), static_cast<int>(problem.head_dim_v));
  return sums_grad_query(problem, gpu) && !problem.shares_queries() && !problem.shares_keys() && !is_wide;
}

bool has_rows_to_prepare(const Problem& problem, const Gpu& gpu) {
  return problem.wanted.query && (problem.query_form == Form::jagged || !is_all_direct(problem, gpu));
}

bool sums_grad_query(const Problem& problem, const Gpu& gpu) {
  return problem.wanted.query && !is_all_direct(problem, gpu);
}

bool is_all_direct(const Problem& problem, const Gpu& gpu) {
  if (problem.key_form == Form::jagged || problem.batch == 0) return false;
  const int64_t length = problem.key_form == Form::shared ? problem.rows_k : problem.rows_k / problem.batch;
  return hopper::is_direct(problem.mask, length, direct_keys(problem, gpu));
}

void choose_hopper_backward_tiles(KernelSpec& kernel, FunctionRegisters function, const Mask& mask,
                                  int64_t mean_queries) {
  const bool has_registers = widest(kernel) <= 64 && function == FunctionRegisters::few;
  const bool is_large = has_registers && mask.keeps_all() && mean_queries >= thresholds::queries_of_large_tiles;
  kernel.family = KernelFamily::hopper;
  kernel.tile_queries = is_large ? hopper::most_backward_tile_queries : hopper::backward_tile_queries;
  const bool is_wide = hopper::is_wide(kernel.head_dim, kernel.head_dim_v);
  kernel.tile_keys = is_wide ? hopper::wide_backward_tile_keys : hopper::backward_tile_keys;
  kernel.warps = 8;  // two warpgroups
  kernel.stages = is_wide ? wide_backward_stages(kernel) : 2;
}

}  // namespace gdpa::plan
