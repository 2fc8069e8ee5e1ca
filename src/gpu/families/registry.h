// The kernel families, one function each that returns the family's object.
#pragma once

#include "gpu/families/family.h"

namespace gdpa::gpu {

const Family& hopper_family();
const Family& portable_family();

}  // namespace gdpa::gpu
