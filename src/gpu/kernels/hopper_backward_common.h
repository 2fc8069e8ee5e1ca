// What the four kernels of backward on Hopper share: key_schedule writes the table of key tiles, backward or
// wide_backward computes, and round_grad_query rounds dQ where no other kernel does.
#pragma once

#include "gpu/kernels/hopper.h"
#include "gpu/launch.h"

namespace gdpa::gpu {

struct HopperBackwardKernel : AttentionKernel {
  bool keys_shared = false;        ///< the batch shares the keys
  bool has_batch_map = false;      ///< several batch entries may have the keys of one owner
  bool wants_grad_query = true;    ///< whether dQ is computed
  bool wants_grad_key = true;      ///< the same for dK
  bool wants_grad_value = true;    ///< the same for dV
  bool has_dq_semaphores = false;  ///< semaphores order the additions to dQ. Otherwise key_schedule clears
                                   ///< accumulators, and round_grad_query rounds them
  bool ordered = false;            ///< CTAs add to dQ in one order
  bool scales_entries = false;     ///< the entries of a key tile may differ in out_scale

  using Arguments = hopper::BackwardArguments;
  auto operator<=>(const HopperBackwardKernel&) const = default;
};

/// What the launches of these kernels need from the plan. Offsets are in the workspace, in bytes; -1 means none.
struct HopperBackwardPlan {
  int64_t slot_counter = -1;        ///< of the counter of slots that CTAs have taken
  int64_t key_tiles = -1;           ///< of the table that key_schedule writes
  int64_t slots = 0;                ///< of that table
  int64_t segments = -1;            ///< with a batch map: of the table of query segments
  int64_t most_key_tiles = 0;       ///< with a batch map and a mask: tiles of keys of one sequence
  int64_t dq_semaphores = -1;       ///< of the dQ semaphores
  int64_t semaphores_per_head = 0;  ///< an upper bound of the tiles of queries of a head
  int64_t heads_per_group = 0;      ///< with dQ semaphores: number of heads with interleaved tiles of keys in the table
  int64_t grad_query = -1;          ///< of the fp32 accumulators of dQ
  int whole_keys = 0;               ///< up to so many keys, one CTA takes a whole sequence
  int direct_keys = 0;              ///< up to so many keys, several CTAs sum dQ in the gradient
  bool prepares_grad_query = false;  ///< key_schedule has rows of dQ to clear or to fill with zeros
};

/// The arguments of all four kernels, which have the same tiles.
hopper::BackwardArguments backward_arguments(const BoundCall& call, const AttentionKernel& tiles,
                                             const HopperBackwardPlan& plan);

/// Launches one of the four kernels.
template <class Spec>
Launch launch(const Spec& kernel, int64_t ctas, const HopperBackwardPlan& plan) {
  return Launch::of(kernel, ctas, [tiles = AttentionKernel(kernel), plan](const BoundCall& call) {
    return backward_arguments(call, tiles, plan);
  });
}

/// Writes the members of Config that all four have.
void write_backward(const HopperBackwardKernel& kernel, hopper::Pass pass, const Expressions& expressions,
                    ConfigText& config);

/// A description of one of the four. `properties` are of the function and the pass.
std::string describe_backward(const HopperBackwardKernel& kernel, std::string_view properties);

}  // namespace gdpa::gpu
