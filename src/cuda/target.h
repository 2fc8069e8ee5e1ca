// The GPU that kernels are planned and compiled for: a device at hand, or an architecture that is only named.
#pragma once

#include <string>

#include "plan/gpu_plan.h"

namespace gdpa::cuda {

constexpr int least_capability = 80;  ///< 10 * major + minor: Ampere, the first with cp.async and bf16 products

struct Target {
  plan::Gpu gpu;             ///< what a plan asks
  std::string architecture;  ///< what NVRTC asks
};

/// A device, asked once. Throws Error (runtime) where it is older than least_capability.
const Target& target_of(int device);

/// "sm_80", "sm_90" or "sm_90a": the numbers of a common GPU of that architecture. Throws Error (value) for another
/// text, or for one that is too old.
Target target_of(const std::string& architecture);

/// The architecture that kernels are compiled for on a device of this compute capability (10 * major + minor).
std::string architecture_of(int capability);

/// Why a GPU of this compute capability is not supported, or an empty string.
std::string why_unsupported(int capability);

}  // namespace gdpa::cuda
