// Tiles and stages of the Hopper kernels. Pure functions; docs/notebook/hopper-forward.md and hopper-backward.md have
// the measurements.
#pragma once

#include "families/family.h"

namespace gdpa::families {

/// Shared memory of a CTA that the Hopper kernels need.
constexpr int hopper_shared_kilobytes = 227;

/// The elements of tensors that f reads at each score.
struct StagedReads {
  int all = 0;
  int of_lines = 0;            ///< depend only on the key or the difference of the positions: staged in shared memory
  int lookups = 0;             ///< lookups that may be staged there too (expression/lookup.h)
  int tile_element_bytes = 0;  ///< of a dense bias that may be staged there too; 0: none
  BiasTile bias_tile = BiasTile::none;  ///< the form of that bias
};

/// Sets the tile, warps and stages of a forward kernel, for keys of this mean length and at most `most_queries` queries
/// in a sequence (the largest number if it is not known). Few keys need few stages to stay in shared memory, and Q,
/// which then streams, gets several. Few queries need one warpgroup only. With a head dim above 128, registers and
/// shared memory decide. The elements of a dense bias, and of lookups, are staged if two stages of
/// each operand then fit.
void choose_hopper_tiles(plan::KernelSpec& kernel, int64_t most_queries, int64_t mean_keys, const StagedReads& reads);

/// Whether a forward kernel of a function with so many reads takes narrower tiles of keys. The compiler loads the
/// elements for many scores at once, and would spill with wider tiles.
bool takes_narrow_tiles(int reads);

/// Chooses the tiles of the kernel for the gradients of tensors: the first of a list that fits in shared memory.
/// Each consumer thread has `sum_elements` sums of its own there.
void choose_hopper_parameter_tiles(plan::KernelSpec& kernel, int sum_elements);

/// Chooses the tiles of a backward kernel, for queries of this mean length, or for all queries if the batch shares the
/// keys. With head dims up to 64, the registers suffice for tiles of 128 queries, unless the function needs many
/// registers. Such tiles are faster only for long sequences without a mask, because tiles of keys wait for each other
/// in a window. No sequence has more than `most_keys` keys (the largest number if it is not known). If these are at
/// most 64, a tile has 64 keys.
void choose_hopper_backward_tiles(plan::KernelSpec& kernel, plan::FunctionRegisters function, bool keeps_all_scores,
                                  int64_t mean_queries, int64_t most_keys);

}  // namespace gdpa::families
