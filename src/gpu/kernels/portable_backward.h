// The host file of kernels/portable/backward.cuh: dK and dV on every supported GPU, and sums of dQ.
#pragma once

#include "gpu/kernels/portable.h"

namespace gdpa::gpu {

struct PortableBackward : PortableKernel, FunctionForm {
  bool reduce_grad_query = false;  ///< add to dQ atomically
  bool keys_shared = false;        ///< the batch shares the keys
  bool has_batch_map = false;      ///< several batch entries may have the keys of one owner
  bool owns_rows = false;          ///< the owners are rows of the operand of keys (common/rows_layout.cuh)
  bool wants_grad_key = true;
  bool wants_grad_value = true;

  using Arguments = CommonArguments;
  static constexpr KernelNames names = {"portable", "backward", "backward", "BackwardArguments", ""};
  static constexpr bool reads_function = true, reads_mask = true;
  auto operator<=>(const PortableBackward&) const = default;
  std::string description() const;
  SourceParts source(const Expressions& expressions) const;

  TileNeeds needs() const;
};

/// The kernel of a call, with its tile. With `owns_rows`, it does not compute dQ.
PortableBackward portable_backward_for(const Call& call, bool reduce_grad_query, bool owns_rows);

}  // namespace gdpa::gpu
