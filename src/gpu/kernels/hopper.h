// What the host files of the Hopper kernels share.
#pragma once

#include <string>
#include <string_view>

#include "gpu/kernels/attention.h"
#include "hopper/arguments.cuh"

namespace gdpa::gpu {

/// The parts of a source with the wait for the previous kernel of the call, with which every Hopper kernel begins.
/// With GDPA_RANDOM_DELAYS=1, which the stress test sets, the kernels have a random delay at every wait, arrival and
/// copy (kernels/common/random_delay.cuh).
SourceParts hopper_source(std::string functions, const ConfigText& config);

/// A word of the description of a kernel with such delays.
std::string_view delayed();

/// The names of a pass in a generated source and in a description.
std::string_view in_source(hopper::Pass pass);
std::string_view in_description(hopper::Pass pass);

/// Shared memory of a CTA that the Hopper kernels need.
constexpr int hopper_shared_kilobytes = 227;

inline int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

}  // namespace gdpa::gpu
