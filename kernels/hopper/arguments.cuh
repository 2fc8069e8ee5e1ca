// The arguments of the Hopper kernels. Plain structs: the host includes this file too.
#pragma once

#include "common/arguments.cuh"
#include "pipeline/arguments.cuh"

namespace gdpa::hopper {

using namespace pipeline;

/// Rows of one WGMMA: queries in forward, keys in backward.
constexpr int warpgroup_rows = 64;

/// Columns of O in the registers of a warpgroup: the least number for which wgmma.cuh has a product.
GDPA_HOST_DEVICE constexpr int output_columns(int head_dim_v) {
  if (head_dim_v <= 64) return 64;
  return head_dim_v <= 192 ? (head_dim_v + 31) / 32 * 32 : 256;
}

using ParameterGradientsArguments = QueryMajorArguments;
using CompleteTermsArguments = CommonArguments;

/// Guards that only huge and infinite scores need cost much: an instruction for each score in forward, and half of the
/// function in backward. The first pass leaves them out. If a result is not finite, which this can cause, a second pass
/// computes again with guards. `only`: the kernel has the guards, or the function needs none. Each pass is a kernel of
/// its own, because the code of the other pass would make the main loop slower.
enum class Pass : int { only, first, second };

struct ForwardArguments : QueryMajorArguments {
  /// With two passes, written by the first pass: 1 if O has a NaN. Each CTA has a number for its own tiles. With the
  /// dynamic order, the second pass distributes the tiles again, so that all CTAs share one number, which is zeroed
  /// before the launch.
  int* found_nan;
};

/// The tiles of backward: 64 queries, or 128 with head dims up to 64; and 128 keys, or 64 if no sequence has more.
constexpr int backward_tile_queries = 64, most_backward_tile_queries = 128;
constexpr int backward_tile_keys = 128, least_backward_tile_keys = 64;

/// Columns of dQ that a consumer of backward computes for 64 queries: half of the columns of the tile of K, or all
/// columns if the consumer has half of the queries of the tile.
GDPA_HOST_DEVICE constexpr int grad_query_columns(int tile_queries, int head_dim) {
  const int columns = head_dim <= 64 ? 64 : 128;
  return tile_queries > warpgroup_rows ? columns : columns / 2;
}

/// Whether wide_backward.cuh computes these head dims, because the accumulators of dK and of dV of 64 keys fill half of
/// the registers of a warpgroup each; and the keys of its tiles.
GDPA_HOST_DEVICE constexpr bool is_wide(int head_dim, int head_dim_v) { return head_dim > 128 || head_dim_v > 128; }
constexpr int wide_backward_tile_keys = 64;

/// The layout of the fp32 accumulators of dQ: (heads, blocks of columns, rows), with contiguous columns of a block.
struct AccumulatorShape {
  int blocks;
  int columns;  ///< of a block
};
GDPA_HOST_DEVICE constexpr AccumulatorShape accumulator_shape_of(int tile_queries, int head_dim, int head_dim_v) {
  constexpr int group = 16;  // columns that four lanes hold together
  if (is_wide(head_dim, head_dim_v)) return {(head_dim + group - 1) / group, group};
  return {tile_queries > warpgroup_rows ? 1 : 2, grad_query_columns(tile_queries, head_dim)};
}

/// Whether one CTA takes all key tiles of a batch entry with up to `most_keys` keys, one after the other. It then sums
/// dQ in the gradient, in its type: it stores dQ of the first key tile, and adds dQ of the others.
GDPA_HOST_DEVICE inline bool is_whole(bool mask_keeps_all, int64_t length_k, int64_t most_keys) {
  return mask_keeps_all && length_k > 0 && length_k <= most_keys;
}

/// The destination of dQ of one query tile and one key tile.
enum class GradQuery : int {
  stored,        ///< in the gradient: the first key tile that writes dQ of these queries
  added,         ///< to the gradient: a later key tile
  first_writer,  ///< stored in the fp32 accumulators: the first writer of several CTAs, with the last keys
  accumulated,   ///< added to the accumulators, which the first writer has stored, or which were cleared
  last_writer    ///< the accumulators and the result of the last writer are added and stored in the gradient
};
GDPA_HOST_DEVICE constexpr bool uses_accumulators(GradQuery is) { return is >= GradQuery::first_writer; }
/// Whether nothing was stored before, so that dQ begins here, with dO if the epilogue has an addend.
GDPA_HOST_DEVICE constexpr bool begins_grad_query(GradQuery is) {
  return is == GradQuery::stored || is == GradQuery::first_writer;
}

/// The numbers of a plan of backward.
struct BackwardNumbers {
  int whole_keys;            ///< the limit of is_whole
  int direct_keys;           ///< with dQ semaphores: dQ of entries with up to so many keys is summed in the gradient
  bool queries_shared;       ///< the batch entries share the queries
  int heads_per_group;       ///< with dQ semaphores: heads with interleaved key tiles in the table (head_groups.cuh)
  unsigned slots;            ///< number of slots in the table of key tiles
  int most_key_tiles;        ///< with a batch map and a mask: of one sequence
  bool masks_of_heads;       ///< with a batch map and a mask: the mask depends on the head
  int semaphores_per_head;   ///< an upper bound of the query tiles of a head
  bool prepares_grad_query;  ///< the schedule kernel prepares accumulators of dQ, or zeroes rows without keys
};

struct BackwardArguments : BackwardNumbers {
  CommonArguments common;
  float scale;            ///< scale of params
  unsigned* slots_taken;  ///< number of scheduled slots; zeroed before the launch
  unsigned* non_finite;   ///< the first pass writes 1 if a gradient is not finite; zeroed before the launch
  void* key_tiles;        ///< the table, of KeyTile (key_tile.cuh); zeroed before the launch if dQ has semaphores
  void* segments;         ///< with a batch map: the table of QuerySegment (key_tile.cuh)
  int* offsets_fall;      ///< 1 if cumulative lengths decrease, which is an error; zeroed before the launch
  int* dq_semaphores;     ///< one for each query tile and head (dq_semaphore.cuh)
  float* grad_query_accumulators;  ///< see accumulator_shape_of; null: every dQ is summed in the gradient
  MappedOperand query, key, value, grad_output, grad_query, grad_key, grad_value;
  MappedOperand addend;  ///< dO in boxes of grad_query, if the epilogue has an addend
};

}  // namespace gdpa::hopper
