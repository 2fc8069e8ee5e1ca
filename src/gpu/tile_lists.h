// The lists of partner tiles of a mask expression (definition/tile_lists.h): the lists that the kernels of a plan read,
// their part of the workspace, and the kernels that write them. The lists of a prepared mask are written before the
// call.
#pragma once

#include <cstddef>
#include <vector>

#include "gpu/call.h"
#include "gpu/launch.h"

namespace gdpa::gpu {

struct GpuPlan;

/// The position in Params::tile_lists of the lists for tiles of this size, which the plan then has; 0 if the mask is no
/// expression. `reads_query_lists`: of the lists of query tiles too.
int lists_of_tiles(const Problem& problem, int tile_queries, int tile_keys, bool reads_query_lists, GpuPlan& plan);

/// Gives the lists of a plan memory, and adds the kernels that write them to `launches`, or takes them from the
/// prepared mask of the call. Throws Error (value) if the mask is prepared for kernels with other tiles.
void place_tile_lists(const Call& call, GpuPlan& plan, std::vector<Launch>& launches);

/// Sets the lists in the arguments of the attention kernels.
void set_tile_lists(const GpuPlan& plan, const Problem& problem, std::byte* workspace, CommonArguments& arguments);

}  // namespace gdpa::gpu
