// The host file of the three kernels of kernels/portable/list_tiles.cuh, which write the lists of partner tiles of a
// mask expression.
#pragma once

#include <vector>

#include "gpu/launch.h"
#include "plan/prepared_tiles.h"

namespace gdpa::gpu {

/// Adds the launches that write lists. `index` is their position in Params::tile_lists.
void list_tiles(const Problem& problem, const plan::TileListsPlan& lists, int index, std::vector<Launch>& launches);

}  // namespace gdpa::gpu
