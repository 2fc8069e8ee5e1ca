// The lengths that choose the kernels of Hopper.
#pragma once

#include <cstdint>

#include "definition/problem.h"

namespace gdpa::gpu {

/// The length of all sequences of keys, or 0 if the host does not know it.
int64_t known_length_of_keys(const Problem& problem);

/// The lengths that choose the tiles of a kernel. In deterministic mode they are constants: the bits of a sequence must
/// not depend on the other sequences of the batch, and the host does not know the length of each.
struct TileLengths {
  int64_t mean_queries;
  int64_t mean_keys;
  int64_t most_queries;  ///< in a sequence; the largest number if the host does not know it
  int64_t most_keys;
};

TileLengths tile_lengths_of(const Problem& problem);

/// Whether the kernels for head dims above 128 compute backward.
bool has_wide_heads(const Problem& problem);

}  // namespace gdpa::gpu
