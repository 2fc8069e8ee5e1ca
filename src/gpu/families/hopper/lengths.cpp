// See lengths.h.
#include "gpu/families/hopper/lengths.h"

#include <limits>

#include "gpu/thresholds.h"
#include "gpu/workspace.h"
#include "hopper/arguments.cuh"

namespace gdpa::gpu {

int64_t known_length_of_keys(const Problem& problem) {
  return problem.key_form == Form::jagged || problem.batch == 0 ? 0 : keys_of(problem).length();
}

TileLengths tile_lengths_of(const Problem& problem) {
  constexpr int64_t unknown = std::numeric_limits<int64_t>::max();
  if (problem.deterministic) {
    return {thresholds::queries_of_deterministic_tiles, thresholds::keys_of_deterministic_tiles, unknown, unknown};
  }
  const Side queries = queries_of(problem), keys = keys_of(problem);
  const int64_t known_keys = known_length_of_keys(problem);
  return {queries.mean_length(), keys.mean_length(), queries.form == Form::jagged ? unknown : queries.mean_length(),
          known_keys == 0 ? unknown : known_keys};
}

bool has_wide_heads(const Problem& problem) {
  return hopper::is_wide(static_cast<int>(problem.head_dim), static_cast<int>(problem.head_dim_v));
}

}  // namespace gdpa::gpu
