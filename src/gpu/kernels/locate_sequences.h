// The host file of kernels/portable/locate_sequences.cuh, which finds the rows of each sequence.
#pragma once

#include "gpu/launch.h"
#include "gpu/sequences.h"

namespace gdpa::gpu {

/// The launch that finds the places for which `plan` has memory.
Launch locate_sequences(const SequencesPlan& plan);

}  // namespace gdpa::gpu
