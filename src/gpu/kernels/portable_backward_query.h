// The host file of kernels/portable/backward_query.cuh: dQ on every supported GPU, in one order.
#pragma once

#include "gpu/kernels/portable.h"

namespace gdpa::gpu {

struct PortableBackwardQuery : PortableKernel, FunctionForm {
  bool queries_shared = false;  ///< the batch shares the queries

  using Arguments = CommonArguments;
  static constexpr KernelNames names = {"portable", "backward_query", "backward_query", "BackwardQueryArguments", ""};
  static constexpr bool reads_function = true, reads_mask = true;
  auto operator<=>(const PortableBackwardQuery&) const = default;
  std::string description() const;
  SourceParts source(const Expressions& expressions) const;

  TileNeeds needs() const;
};

/// The kernel of a call, with its tile.
PortableBackwardQuery portable_backward_query_for(const Call& call, bool queries_shared);

}  // namespace gdpa::gpu
