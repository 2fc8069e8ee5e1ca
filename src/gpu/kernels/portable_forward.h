// The host file of kernels/portable/forward.cuh: O on every supported GPU.
#pragma once

#include "gpu/kernels/portable.h"

namespace gdpa::gpu {

struct PortableForward : PortableKernel, FunctionForm {
  bool has_pages = false;  ///< keys and values are in pages

  using Arguments = CommonArguments;
  static constexpr KernelNames names = {"portable", "forward", "forward", "ForwardArguments", ""};
  static constexpr bool reads_function = true, reads_mask = true;
  auto operator<=>(const PortableForward&) const = default;
  std::string description() const;
  SourceParts source(const Expressions& expressions) const;

  TileNeeds needs() const;
};

/// The kernel of a call, with its tile.
PortableForward portable_forward_for(const Call& call);

}  // namespace gdpa::gpu
