// The checks of a norm, and the conversion of its arguments to the arguments of the CUDA backend.
#pragma once

#include "api/view.h"
#include "gdpa/norm.h"

namespace gdpa::api {

/// Checks the inputs. With `needs_data` false, tensors may have null data, as for the size of a workspace.
void check_norm(const Norm& norm, bool needs_data);
void check_norm_forward(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics);
void check_norm_backward(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                         const NormGradients& gradients);

/// The columns of a row, of all heads.
inline int64_t columns_of(const TensorView& rows) { return rows.sizes[1] * (rows.rank == 3 ? rows.sizes[2] : 1); }

}  // namespace gdpa::api
