// The GPU for which kernels are planned and compiled: a device of the machine, or a named architecture.
#pragma once

#include <string>

#include "gpu/call.h"

namespace gdpa::gpu {

constexpr int least_capability = 80;  ///< 10 * major + minor; Ampere is the first with cp.async and bf16 products

struct Target {
  Gpu gpu;                   ///< the properties for a plan
  std::string architecture;  ///< the architecture for NVRTC
};

/// Returns the target of a device, which is queried once. Throws Error (runtime) if it is older than least_capability.
const Target& target_of(int device);

/// Returns the target of an architecture ("sm_80", "sm_90" or "sm_90a"), with the properties of a common GPU. Throws
/// Error (value) for an unknown or too old architecture.
Target target_of(const std::string& architecture);

/// Returns the architecture for a device of this compute capability (10 * major + minor).
std::string architecture_of(int capability);

/// Returns the reason why a GPU of this compute capability is not supported, or an empty string.
std::string why_unsupported(int capability);

}  // namespace gdpa::gpu
