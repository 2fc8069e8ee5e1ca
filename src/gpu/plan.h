// GpuPlan: the launches of a call, in order, and its workspace. No GPU is needed to make one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpu/call.h"
#include "gpu/launch.h"
#include "gpu/parameter_sums.h"
#include "gpu/sequences.h"
#include "gpu/workspace.h"
#include "plan/prepared_tiles.h"

namespace gdpa::gpu {

struct AttentionKernel;

/// fp32 accumulators of a gradient, which a kernel adds to and the reduce kernel rounds: (rows, heads, padded columns),
/// for each dense batch entry and each split of the batch.
struct Accumulators {
  int64_t offset = -1;  ///< into the workspace, in bytes; -1: there are none
  Operand Params::*gradient = nullptr;
  OperandShape shape = {};
  int64_t length = 0;  ///< of a batch entry that is not jagged

  bool exist() const { return offset >= 0; }
  Operand operand(std::byte* workspace) const;
};

struct GpuPlan {
  std::vector<Launch> launches;
  WorkspaceLayout workspace;
  /// Of the batch, where the batch shares an operand and partial results of its gradient are added.
  int64_t splits = 1;
  double output_factor = 1;  ///< forward, where scores are not scaled: multiplies every output, as out_scale does
  Accumulators grad_query, grad_key, grad_value;
  SequencesPlan sequences;
  ParameterSumsPlan parameters;
  std::vector<plan::TileListsPlan> tile_lists;  ///< with a mask expression, in the workspace or in a prepared mask
  std::size_t main_launch = 0;                  ///< the first one that computes products
  int tile_queries = 0, tile_keys = 0;          ///< of its kernel
  bool attention_adds = false;                  ///< what add_rows adds otherwise
  bool deterministic = true;
  std::string reason;  ///< why these kernels, in one sentence

  /// Adds a launch of a kernel that computes products with these tiles.
  void add_products(Launch launch, const AttentionKernel& tiles);

  /// Reserves accumulators of a gradient, for so many parts of the batch.
  Accumulators reserve_accumulators(const Call& call, Operand Params::*gradient, int64_t parts);

  /// Reserves the partial results of the wanted gradients of keys that the batch shares.
  void reserve_key_partials(const Call& call);

  /// Adds a launch that clears the bytes of the workspace from `begin` to `end`.
  void clear(int64_t begin, int64_t end);

  /// The arguments of the attention kernels.
  CommonArguments common_arguments(const Problem& problem, const Params& params, std::byte* workspace) const;
};

/// The plan of a call. A pure function: it uses neither the driver nor the lengths of jagged sequences. Throws Error
/// (runtime) if the GPU has too little shared memory, and Error (value) if the mask is prepared for other kernels.
GpuPlan plan_call(const Call& call);

/// Plans the preparation of the tile lists of a call with the plan `of_call`: places the lists that `prepared` does not
/// have yet after its end. The result has only the launches that write the new lists; none if there are none. Its
/// workspace is the memory of the prepared mask, without the memory in which sequences are located
/// (plan_preparation()).
GpuPlan plan_prepared_lists(const Call& call, const GpuPlan& of_call, plan::PreparedTiles& prepared);

/// Completes such a plan by the launches that the kernels of lists need first. They use memory after `bytes_of_lists`.
void plan_preparation(const Call& call, int64_t bytes_of_lists, GpuPlan& plan);

/// Whether results may take this factor in place of the scores. bfloat16 and fp32 reach 2^128. With a factor between
/// 2^-32 and 2^32, neither P nor an accumulator overflows if the result is below 2^96, and neither vanishes if it is
/// above 2^-94.
bool is_factor(double factor);

/// The factor of f that takes the place of the scale: f(scale s) = factor f(s). None if f is not homogeneous, or if P
/// could overflow or vanish with unscaled scores.
std::optional<double> factor_of_scale(const Call& call);

}  // namespace gdpa::gpu
