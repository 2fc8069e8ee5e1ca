// The host file of kernels/hopper/forward.cuh: O on Hopper, with one persistent CTA on each multiprocessor.
#pragma once

#include "common/bias_tile.cuh"
#include "gpu/kernels/hopper.h"
#include "gpu/launch.h"

namespace gdpa::gpu {

struct HopperForward : AttentionKernel, FunctionForm {
  int query_stages = 0;                    ///< of Q; AttentionKernel::stages is the number for K and V
  bool query_in_registers = false;         ///< Q is an RS operand; otherwise it stays in shared memory
  int box_keys = 0;                        ///< with pages: the keys of one TMA load; otherwise 0
  BiasTile bias_tile = BiasTile::none;     ///< of a dense bias in shared memory
  bool stages_lookups = false;             ///< the elements of lookups are staged in shared memory
  hopper::Pass pass = hopper::Pass::only;  ///< which values of f the kernel is for

  using Arguments = hopper::ForwardArguments;
  static constexpr KernelNames names = {"hopper", "forward", "forward", "ForwardArguments"};
  auto operator<=>(const HopperForward&) const = default;
  std::string properties() const;
  SourceParts source(const Expressions& expressions) const;
};

/// What the launches of forward need from the plan. Offsets are in the workspace; -1: none.
struct HopperForwardLaunch {
  int64_t ctas = 0;
  pipeline::TileDistribution tiles;
  int64_t tiles_taken = -1;  ///< with a dynamic order: of ForwardArguments::tiles_taken
  int64_t found_nan = -1;    ///< with two passes: of ForwardArguments::found_nan
};

Launch launch(const HopperForward& kernel, const HopperForwardLaunch& of);

}  // namespace gdpa::gpu
