// The plan of the portable kernels. A pure function.
#pragma once

#include "families/family.h"

namespace gdpa::families {

plan::GpuPlan portable_plan(const PlanRequest& request);

}  // namespace gdpa::families
