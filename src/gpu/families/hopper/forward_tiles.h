// The tiles and stages of the forward kernel of Hopper. docs/notebook/hopper-forward.md has the measurements.
#pragma once

#include "gpu/families/hopper/reads.h"
#include "gpu/kernels/hopper_forward.h"

namespace gdpa::gpu {

/// Sets the tile, warps and stages of a kernel, for keys of this mean length and at most `most_queries` queries in a
/// sequence (the largest number if it is not known). Few keys need few stages to stay in shared memory, and Q, which
/// then streams, gets several. Few queries need one warpgroup only. With a head dim above 128, registers and shared
/// memory decide. The elements of a dense bias, and of lookups, are staged if two stages of each operand then fit.
void choose_forward_tiles(int64_t most_queries, int64_t mean_keys, const StagedReads& reads, HopperForward& kernel);

/// Whether the kernel of a function with so many reads takes narrower tiles of keys. The compiler loads the elements
/// for many scores at once, and would spill with wider tiles.
bool takes_narrow_tiles(int reads);

/// With keys in pages, sets the largest boxes that divide a page and a tile of keys. Pages and tiles have multiples of
/// 16 rows. The tile shrinks if it has more boxes than the producer thread has registers for their pages.
void choose_boxes(int64_t page_rows, HopperForward& kernel);

}  // namespace gdpa::gpu
