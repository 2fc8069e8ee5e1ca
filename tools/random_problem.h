// Random problems for `gdpa verify`, each as the options of `gdpa run` that repeat it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gdpa/tensor.h"

namespace gdpa::tool {

/// A type of the operands and of the products: float32, tf32, bfloat16, float16, and on the CPU float64.
using TypeName = std::string;

/// Returns the types that a device computes in.
std::vector<TypeName> types_of(DeviceKind kind);

/// Returns the options of a problem with few enough scores for the reference. The same arguments give the same problem.
std::vector<std::string> random_problem(uint64_t seed, const TypeName& type, DeviceKind kind);

/// Returns the words as a command of a shell.
std::string shell_command(const std::vector<std::string>& words);

}  // namespace gdpa::tool
