// The plans of the Hopper kernels, and the lengths that choose the kernels. Pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "gpu/plan.h"
#include "gpu/thresholds.h"
#include "gpu/workspace.h"
#include "hopper/arguments.cuh"

namespace gdpa::gpu {

/// Adds the launches of forward, or of backward.
void add_hopper_forward(const Call& call, GpuPlan& plan);
void add_hopper_backward(const Call& call, GpuPlan& plan);

/// Why the Hopper kernels cannot compute backward of a call; empty if they can. The conditions of all Hopper kernels
/// are not among the reasons.
std::string why_not_hopper_backward(const Call& call);

/// Adds the kernel for the gradients of tensors.
void add_hopper_parameter_gradients(const Call& call, const ParameterGradientsForm& form, GpuPlan& plan);

/// The length of all sequences of keys, or 0 if the host does not know it.
inline int64_t known_length_of_keys(const Problem& problem) {
  return problem.key_form == Form::jagged || problem.batch == 0 ? 0 : keys_of(problem).length();
}

/// The lengths that choose the tiles of a kernel. In deterministic mode they are constants: the bits of a sequence must
/// not depend on the other sequences of the batch, and the host does not know the length of each.
struct TileLengths {
  int64_t mean_queries;
  int64_t mean_keys;
  int64_t most_queries;  ///< in a sequence; the largest number if the host does not know it
  int64_t most_keys;
};

inline TileLengths tile_lengths_of(const Problem& problem) {
  constexpr int64_t unknown = std::numeric_limits<int64_t>::max();
  if (problem.deterministic) {
    return {thresholds::queries_of_deterministic_tiles, thresholds::keys_of_deterministic_tiles, unknown, unknown};
  }
  const Side queries = queries_of(problem), keys = keys_of(problem);
  const int64_t known_keys = known_length_of_keys(problem);
  return {queries.mean_length(), keys.mean_length(), queries.form == Form::jagged ? unknown : queries.mean_length(),
          known_keys == 0 ? unknown : known_keys};
}

/// Whether the kernels for head dims above 128 compute backward.
inline bool has_wide_heads(const Problem& problem) {
  return hopper::is_wide(static_cast<int>(problem.head_dim), static_cast<int>(problem.head_dim_v));
}

}  // namespace gdpa::gpu
