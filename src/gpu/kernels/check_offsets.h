// The host file of kernels/portable/check_offsets.cuh, which stops a call with wrong offsets in debug mode.
#pragma once

#include <vector>

#include "gpu/call.h"
#include "gpu/launch.h"
#include "plan/prepared_tiles.h"

namespace gdpa::gpu {

/// The launch that checks the offsets of the call, and the lengths of a prepared mask, whose lists are `lists`.
Launch check_offsets(const std::vector<plan::TileListsPlan>& lists);

/// Whether a call has such a launch: in debug mode, if its device data have offsets.
bool checks_offsets(const Call& call);

}  // namespace gdpa::gpu
