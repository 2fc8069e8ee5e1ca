// The kernel families, one function each that returns the family's object.
#pragma once

#include "families/family.h"

namespace gdpa::families {

const Family& hopper_family();
const Family& portable_family();

}  // namespace gdpa::families
