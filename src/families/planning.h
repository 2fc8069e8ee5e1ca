// The code that the planners of all families need: the tiles of one side of a problem, the fields of a kernel
// that do not depend on its tile, and the layout of the workspace.
#pragma once

#include <cstdint>

#include "definition/divide.h"
#include "families/family.h"

namespace gdpa::families {

/// One side of the problem: how its rows become tiles.
struct Side {
  Form form;
  int64_t rows;  ///< of the operand
  int64_t batch;

  int64_t length() const;
  int64_t mean_length() const;

  /// An upper bound of the tiles of one head over all batch entries, or over `splits` splits of the batch where the
  /// side is shared. The rows of a jagged side before the first offset and after the last one have tiles too.
  int64_t most_tiles(int64_t tile, int64_t splits) const;
};

Side queries_of(const Problem& problem);
Side keys_of(const Problem& problem);

/// Whether a problem has the kernels for queries, or keys, that the batch shares. In deterministic mode, a batch of one
/// entry has the same kernels as a larger batch.
bool has_shared_queries(const Problem& problem);
bool has_shared_keys(const Problem& problem);

/// Sets the members of a kernel that select the structs Config::Mask and Config::Layout, apart from a mask expression.
void select_structs(plan::KernelSpec& kernel, const Problem& problem);

/// The fields of a kernel that depend on the operands alone.
plan::KernelSpec kernel_for(const PlanRequest& request, plan::KernelKind kind);

plan::GpuElement element_of(DType dtype, plan::Float32Products products);

/// The bytes of WarpTerms (kernels/common/parameter_terms.cuh), which each warp of a kernel for the gradients of
/// tensors has in shared memory.
constexpr int warp_terms_bytes(int tile_keys) {
  constexpr int rows = 8, lanes = 32, padding = 8, float_bytes = 4;
  return rows * ((tile_keys + 15 + lanes - 1) / lanes * lanes + padding) * float_bytes;
}

/// Reserves parts of a plan's workspace, one after the other.
class WorkspaceLayout {
 public:
  explicit WorkspaceLayout(plan::GpuWorkspace& workspace) : workspace_(workspace) {}

  /// Reserves `bytes` bytes, aligned. Returns their offset.
  int64_t reserve(int64_t bytes);

  /// Reserves fp32 accumulators of (rows, heads, padded columns). Returns their offset.
  int64_t reserve_accumulators(int64_t rows, int64_t heads, int64_t columns);

  /// Reserves the partial results of dK and dV of shared keys, for `splits` splits of the batch.
  void reserve_key_partials(const Problem& problem, int64_t splits);

  /// Everything reserved so far is cleared before the first kernel.
  void clear_reserved() { workspace_.zeroed_bytes = workspace_.bytes; }

 private:
  plan::GpuWorkspace& workspace_;
};

/// The kernel that rounds fp32 accumulators into a gradient: `rows` rows, one for each head, of `columns` columns. With
/// `adds_query`, it adds dO.
plan::GpuStep reduction(const Problem& problem, const plan::Gpu& gpu, bool aligned, int64_t columns, int64_t rows,
                        bool adds_query);

}  // namespace gdpa::families
