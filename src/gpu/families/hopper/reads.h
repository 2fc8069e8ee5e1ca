// The elements of tensors that f reads, as far as the kernels of Hopper stage them in shared memory or order their
// tiles by them.
#pragma once

#include "common/bias_tile.cuh"
#include "gpu/call.h"

namespace gdpa::gpu {

/// A dense bias: the elements of activation::tile_read() if kernels may load its rows.
struct DenseBias {
  int element_bytes = 0;
  BiasTile tile = BiasTile::none;
};

DenseBias dense_bias_of(const Call& call);

/// The elements of tensors that f reads at each score.
struct StagedReads {
  int all = 0;
  int of_lines = 0;  ///< depend only on the key or the difference of the positions: staged in shared memory
  int lookups = 0;   ///< lookups that may be staged there too (expression/lookup.h)
  DenseBias bias;    ///< may be staged there too
};

StagedReads staged_reads_of(const Call& call);

/// Whether f reads, for each pair of a query and a key, an element of a tensor that all batch entries share.
bool shares_pairs(const Call& call);

}  // namespace gdpa::gpu
