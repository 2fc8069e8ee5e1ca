// See hopper_tiles.h.
#include "families/hopper/hopper_tiles.h"

#include <algorithm>

#include "definition/bound_tensor.h"
#include "families/planning.h"
#include "hopper/arguments.cuh"
#include "plan/thresholds.h"

namespace gdpa::families {
namespace {

namespace thresholds = plan::thresholds;
using plan::FunctionRegisters;
using plan::KernelSpec;

int widest(const KernelSpec& kernel) { return std::max(kernel.head_dim, kernel.head_dim_v); }

int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

/// The limits of a forward tile: shared memory, and the registers of a thread in a warpgroup that holds 64 rows of each
/// operand.
struct ForwardTile {
  const KernelSpec& kernel;
  const StagedReads& reads;

  int operand_registers() const {
    const int query = kernel.hopper().query_in_registers ? round_up(kernel.head_dim, 16) / 4 : 0;
    const int scores = kernel.tile_keys / 2, p = kernel.tile_keys / 4;
    return query + scores + p + hopper::output_columns(kernel.head_dim_v) / 2;
  }

  int shared_bytes() const {
    constexpr int element_bytes = 2, block_columns = 64, queue_and_barriers = 3072;
    const int columns = round_up(kernel.head_dim, block_columns),
              columns_v = round_up(kernel.head_dim_v, block_columns);
    const int query = kernel.hopper().query_in_registers ? std::max(columns, columns_v) : columns;  // O is staged there
    // The inputs of a column or a difference have at most 16 bytes for each read.
    const int lines = reads.of_lines * (kernel.tile_keys + 16) * 16;
    constexpr int rows = 16;  // of StagedTile
    const int tile = rows * staged_row_bytes(kernel.hopper().bias_tile, kernel.tile_keys * reads.tile_element_bytes);
    const int lookups = kernel.hopper().stages_lookups ? lookup_bytes(reads.lookups, kernel.tile_keys) : 0;
    const int inputs = kernel.warps * (lines + tile + lookups);
    return (kernel.hopper().query_stages * kernel.tile_queries * query +
            kernel.stages * kernel.tile_keys * (columns + columns_v)) *
               element_bytes +
           queue_and_barriers + inputs;
  }
  bool has_shared_memory() const { return shared_bytes() <= hopper_shared_kilobytes * 1024; }

  bool fits() const {
    // The compiler needs 32 of the 224 registers for everything else, and more where both Q and 256 columns of O are in
    // registers.
    const bool has_room = !kernel.hopper().query_in_registers || hopper::output_columns(kernel.head_dim_v) < 256;
    return has_room && operand_registers() <= 192 && has_shared_memory();
  }
};

/// Sets the largest tile_keys that fits, at most `most`. Returns false where not even 64 keys fit.
bool choose_tile_keys(KernelSpec& kernel, bool query_in_registers, int most, const StagedReads& reads) {
  kernel.hopper().query_in_registers = query_in_registers;
  for (kernel.tile_keys = most; kernel.tile_keys >= 64; kernel.tile_keys -= 16) {
    if (ForwardTile{kernel, reads}.fits()) return true;
  }
  return false;
}

/// Q in registers if it fits, then the largest tile of keys with two stages, then more stages. Returns false if not
/// even 64 keys fit.
bool choose_wide_tiles(KernelSpec& kernel, int most_keys, const StagedReads& reads) {
  kernel.stages = 2;
  kernel.hopper().query_stages = 1;
  if (!choose_tile_keys(kernel, true, most_keys, reads) && !choose_tile_keys(kernel, false, most_keys, reads)) {
    return false;
  }
  for (int* const stages : {&kernel.stages, &kernel.hopper().query_stages}) {
    ++*stages;
    if (!ForwardTile{kernel, reads}.fits()) --*stages;
  }
  return true;
}

/// Reduces the stages that choose_hopper_tiles() prefers to those that fit. Two stages of each operand suffice. Returns
/// false if they do not fit.
bool reduce_stages(KernelSpec& kernel, const StagedReads& reads) {
  // The inputs of a tile take about as much memory as a stage of Q, and Q needs its stages less.
  int* const of_keys = &kernel.stages;
  int* const of_queries = &kernel.hopper().query_stages;
  const bool has_inputs = kernel.hopper().bias_tile != BiasTile::none || kernel.hopper().stages_lookups;
  for (int* const stages : {has_inputs ? of_queries : of_keys, has_inputs ? of_keys : of_queries}) {
    while (*stages > 2 && !ForwardTile{kernel, reads}.has_shared_memory()) --*stages;
  }
  return ForwardTile{kernel, reads}.has_shared_memory();
}

/// Calls choose(kernel) with the elements of a dense bias or of lookups in shared memory, and without them if this
/// returns false.
template <class Choose>
void stage_if_it_fits(KernelSpec& kernel, const StagedReads& reads, const Choose& choose) {
  KernelSpec staged = kernel;
  staged.hopper().bias_tile = reads.bias_tile;
  staged.hopper().stages_lookups = reads.lookups > 0;
  if ((reads.bias_tile != BiasTile::none || reads.lookups > 0) && choose(staged)) {
    kernel = staged;
  } else {
    choose(kernel);
  }
}

/// Stages of Q and dO: as many as fit in shared memory with K and V, f' in fp32 and dS twice, at most three.
int wide_backward_stages(const KernelSpec& kernel) {
  constexpr int rows = hopper::wide_backward_tile_keys, element_bytes = 2, block_columns = 64;
  constexpr int most = 3, queue_and_barriers = 1024;
  constexpr int scores = rows * hopper::backward_tile_queries;
  const int columns = round_up(kernel.head_dim, block_columns) + round_up(kernel.head_dim_v, block_columns);
  const int free = hopper_shared_kilobytes * 1024 - queue_and_barriers -
                   scores * (static_cast<int>(sizeof(float)) + 2 * element_bytes) - rows * columns * element_bytes;
  return std::min(most, free / (rows * columns * element_bytes));
}

/// A tile of the kernel for the gradients of tensors.
struct ParameterTile {
  int queries;
  int keys;
  int query_stages;
  int stages;
};

constexpr ParameterTile parameter_tiles[] = {
    {128, 64, 2, 4}, {128, 64, 2, 2}, {128, 64, 1, 2}, {128, 32, 1, 2}, {64, 64, 1, 2}, {64, 32, 1, 2},
};

int parameter_shared_bytes(const KernelSpec& kernel) {
  constexpr int element_bytes = 2, block_columns = 64, queue_and_barriers = 3072;
  const int columns = round_up(kernel.head_dim, block_columns) + round_up(kernel.head_dim_v, block_columns);
  const int rows = kernel.hopper().query_stages * kernel.tile_queries + kernel.stages * kernel.tile_keys;
  const int sums = kernel.warps * 32 * kernel.hopper().sum_elements * static_cast<int>(sizeof(float));
  return rows * columns * element_bytes + kernel.warps * warp_terms_bytes(kernel.tile_keys) + sums + queue_and_barriers;
}

}  // namespace

bool takes_narrow_tiles(int reads) { return reads > 1; }

void choose_hopper_tiles(KernelSpec& kernel, int64_t most_queries, int64_t mean_keys, const StagedReads& reads) {
  const bool is_narrow = widest(kernel) <= 64;
  const bool are_few = mean_keys <= (is_narrow ? thresholds::few_keys_of_narrow_heads : thresholds::few_keys);
  const bool is_wide = widest(kernel) > 128;
  const int warpgroups = !is_wide && most_queries <= thresholds::queries_of_one_warpgroup ? 1 : 2;
  kernel.tile_queries = warpgroups * hopper::warpgroup_rows;
  kernel.warps = warpgroups * 4;
  const int most_keys = !takes_narrow_tiles(reads.all) ? (is_narrow ? 192 : 128) : is_wide ? 64 : is_narrow ? 96 : 112;
  if (is_wide) {
    stage_if_it_fits(kernel, reads, [&](KernelSpec& of) { return choose_wide_tiles(of, most_keys, reads); });
    return;
  }
  kernel.hopper().query_in_registers = true;
  stage_if_it_fits(kernel, reads, [&](KernelSpec& of) {
    of.tile_keys = !are_few ? most_keys : mean_keys <= thresholds::keys_of_a_short_tile ? 64 : std::min(128, most_keys);
    if (warpgroups == 1) {
      // Consecutive tiles seldom have the same keys: as many stages as fit.
      of.stages = is_narrow || of.tile_keys == 64 ? 4 : 3;
      of.hopper().query_stages = 2;
    } else {
      of.stages = !are_few ? (is_narrow ? 3 : 2) : is_narrow || of.tile_keys == 64 ? 4 : 2;
      of.hopper().query_stages = 3;
      // K and V stay in three stages, for which Q gives up two stages. With a dense bias or lookups, three stages do
      // not fit.
      constexpr int three = 3, keys_of_a_stage = thresholds::keys_of_three_stages / three;
      const bool has_inputs = of.hopper().bias_tile != BiasTile::none || of.hopper().stages_lookups;
      const bool stays_in_three =
          !are_few && mean_keys <= thresholds::keys_of_three_stages && of.tile_keys == keys_of_a_stage;
      if (stays_in_three && !has_inputs) {
        of.stages = three;
        of.hopper().query_stages = 1;
      }
    }
    if (of.hopper().bias_tile == BiasTile::none && !of.hopper().stages_lookups) return reduce_stages(of, reads);
    // The addresses of the copies need registers: 192 keys would spill. 32-bit elements have the room of twice the
    // keys.
    for (int keys = std::min(of.tile_keys, 128); keys >= 64; keys -= 16) {
      KernelSpec tried = of;
      tried.tile_keys = keys;
      if (!reduce_stages(tried, reads)) continue;
      of = tried;
      return true;
    }
    return false;
  });
}

void choose_hopper_parameter_tiles(KernelSpec& kernel, int sum_elements) {
  kernel.hopper().sum_elements = sum_elements;
  for (const ParameterTile& tile : parameter_tiles) {
    kernel.tile_queries = tile.queries;
    kernel.tile_keys = tile.keys;
    kernel.warps = tile.queries / 16;
    kernel.stages = tile.stages;
    kernel.hopper().query_stages = tile.query_stages;
    if (parameter_shared_bytes(kernel) <= hopper_shared_kilobytes * 1024) return;
  }
}

void choose_hopper_backward_tiles(KernelSpec& kernel, FunctionRegisters function, bool keeps_all_scores,
                                  int64_t mean_queries, int64_t most_keys) {
  const bool has_registers = widest(kernel) <= 64 && function == FunctionRegisters::few;
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
  const int stages_of_few_keys = function == FunctionRegisters::few ? 4 : 3;
  kernel.stages = is_wide ? wide_backward_stages(kernel) : are_few ? stages_of_few_keys : 2;
}

}  // namespace gdpa::families
