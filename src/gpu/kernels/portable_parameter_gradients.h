// The host file of kernels/portable/parameter_gradients.cuh: the gradients of the tensors that f reads, on every
// supported GPU.
#pragma once

#include "gpu/kernels/portable.h"
#include "gpu/parameter_sums.h"

namespace gdpa::gpu {

struct PortableParameterGradients : PortableKernel, ParameterGradientsForm {
  using Arguments = CommonArguments;
  static constexpr KernelNames names = {"portable", "parameter_gradients", "parameter_gradients",
                                        "ParameterGradientsArguments", ""};
  static constexpr bool reads_function = true, reads_mask = true;
  auto operator<=>(const PortableParameterGradients&) const = default;
  std::string description() const;
  SourceParts source(const Expressions& expressions) const;

  TileNeeds needs() const;
};

/// The kernel of a call, with its tile.
PortableParameterGradients portable_parameter_gradients_for(const Call& call, const ParameterGradientsForm& form);

}  // namespace gdpa::gpu
