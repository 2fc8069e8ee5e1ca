// Whether a call computes a gradient.
#pragma once

#include "gdpa/tensor.h"

namespace gdpa::api {

/// An empty view is a gradient that is not wanted.
inline bool is_wanted(const MutableTensorView& gradient) { return gradient.data != nullptr || gradient.rank != 0; }

}  // namespace gdpa::api
