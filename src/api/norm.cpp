// The public functions of norms. Each checks the call and passes it to the CUDA backend.
#include "gdpa/norm.h"

#include "api/norm_checks.h"
#include "gpu/kernels/norm.h"

namespace gdpa {

void norm(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics) {
  api::check_norm_forward(norm, y, statistics);
  gpu::run_norm(norm, y, statistics);
}

void norm_backward(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                   const NormGradients& gradients) {
  api::check_norm_backward(norm, grad_y, statistics, gradients);
  gpu::run_norm_backward(norm, grad_y, statistics, gradients);
}

int64_t norm_workspace_bytes(const Norm& norm, const NormGradients& gradients) {
  api::check_norm(norm, false);
  return gpu::norm_workspace_bytes(norm, gradients);
}

}  // namespace gdpa
