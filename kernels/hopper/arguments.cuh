// What the launcher passes to the Hopper kernels. Plain structs: the host includes this file too.
#pragma once

#include "common/arguments.cuh"
#include "hopper/tensor_map.cuh"

namespace gdpa::hopper {

/// Rows of a warpgroup's product: its queries and O in forward, its keys in backward.
constexpr int warpgroup_rows = 64;

/// Columns of O in the registers of a warpgroup: those of a product that wgmma.cuh has.
GDPA_HOST_DEVICE constexpr int output_columns(int head_dim_v) {
  if (head_dim_v <= 64) return 64;
  return head_dim_v <= 192 ? (head_dim_v + 31) / 32 * 32 : 256;
}

/// An operand, as the copy engine sees it. `extent` is that of x; batch_step is how far y goes from one batch entry to
/// the next where the operand is not packed: 1, or 0 where the batch shares it.
struct MappedOperand {
  TensorMap map;
  int extent;
  int batch_step;
};

struct ForwardArguments {
  CommonArguments common;
  float scale;   ///< that of params; multiplied from where it lies, it takes no register
  bool in_runs;  ///< each CTA takes places that follow each other, else one of every gridDim
  MappedOperand query, key, value, output;
};

/// The tiles of backward: 64 queries, or twice as many with head dims up to 64.
constexpr int backward_tile_queries = 64, most_backward_tile_queries = 128, backward_tile_keys = 128;

/// Columns of dQ that a warpgroup of backward computes, for 64 queries: half of those of K's tile, or where it has half
/// of the tile's queries, all.
GDPA_HOST_DEVICE constexpr int grad_query_columns(int tile_queries, int head_dim) {
  const int columns = head_dim <= 64 ? 64 : 128;
  return tile_queries > warpgroup_rows ? columns : columns / 2;
}

/// Whether backward has a kernel of its own for these head dims, since dK and dV of 64 keys fill the registers of a
/// warpgroup each (wide_backward.cuh); and the keys of its tiles.
GDPA_HOST_DEVICE constexpr bool is_wide(int head_dim, int head_dim_v) { return head_dim > 128 || head_dim_v > 128; }
constexpr int wide_backward_tile_keys = 64;

/// How fp32 sums of dQ lie: (heads, blocks of columns, rows), each row contiguous in the columns of a block.
struct SumsShape {
  int blocks;
  int columns;  ///< of a block
};
GDPA_HOST_DEVICE constexpr SumsShape sums_shape(int tile_queries, int head_dim, int head_dim_v) {
  constexpr int group = 16;  // that four lanes hold together
  if (is_wide(head_dim, head_dim_v)) return {(head_dim + group - 1) / group, group};
  return {tile_queries > warpgroup_rows ? 1 : 2, grad_query_columns(tile_queries, head_dim)};
}

/// Whether dQ of a batch entry goes to the gradient at once: one CTA has all of its keys, up to `most_keys`, one tile
/// after the other. Else it goes to fp32 sums, to which the CTAs that have them add.
GDPA_HOST_DEVICE inline bool is_direct(const Mask& mask, int64_t length_k, int64_t most_keys) {
  return mask.keeps_all() && length_k > 0 && length_k <= most_keys;
}

/// Bounds that only huge and infinite scores need cost as much as half of a function: a first pass of backward leaves
/// them out, and where dK or dV is not finite, which may come of that, there is a second one with them, of all tiles.
enum class BackwardPass : int { only, first, again };

/// Whether the CTA that takes this place takes the next one too, and has taken the one before.
struct KeyTileLinks {
  enum : int { none = 0, to_next = 1, to_previous = 2 };
};

/// What becomes of dQ of a tile of queries and one of keys.
enum class GradQuery : int {
  stored,         ///< in the gradient: a CTA has all keys that the queries meet, and this is its first tile of them
  added,          ///< to the gradient: it is another
  begins_sums,    ///< stored as fp32 sums: it is the first of several CTAs' tiles, of the last keys
  added_to_sums,  ///< which have been begun, or cleared
  ends_sums       ///< the sums, with it, are stored in the gradient: it is the last
};
GDPA_HOST_DEVICE constexpr bool has_sums(GradQuery is) { return is >= GradQuery::begins_sums; }

/// Tiles of queries [begin, end) of those that meet a tile of keys.
struct QueryTiles {
  int begin;
  int end;

  GDPA_HOST_DEVICE bool holds(int tile) const { return tile >= begin && tile < end; }
};

/// A tile of keys of one head, and the tiles of queries that meet it: `query_tiles` of each head of its group.
struct KeyTile {
  int steps;  ///< tiles of queries of all heads; 0: there are no more tiles of keys
  int links;  ///< to the places beside it: of KeyTileLinks
  int query_tiles;
  QueryTiles full;   ///< need no test of their scores
  QueryTiles first;  ///< meet no keys behind it: it is the first that adds to their sums
  QueryTiles last;   ///< meet no keys before it
  int first_query;
  int first_key;
  int length_q;
  int length_k;
  int first_head;  ///< of the group
  int key_head;
  float out_scale;
  MapOrigin query;    ///< of the first tile's first row
  int grad_output_y;  ///< with x of the query
  MapOrigin key;      ///< of the first key
  int value_y;        ///< with x of the key
  int is_direct;      ///< whether, as the function of that name says
  int grad_query_y;   ///< with x of the query
  int grad_key_y;     ///< with x of the key
  int grad_value_y;
  int turn;          ///< of the first tile of queries, among those of a head (turns.cuh)
  int grad_query;    ///< the row first_query among those of the sums, of which no memory holds 2^31
  int64_t grad_key;  ///< from the operand's data, or the sums', to the row first_key of key_head
  int64_t grad_value;
};

struct BackwardArguments {
  CommonArguments common;
  float scale;             ///< that of params
  int direct_keys;         ///< of is_direct
  bool queries_shared;     ///< by the batch
  int heads_of_window;     ///< where there are turns: of place_in_window
  unsigned places;         ///< in the table
  unsigned* places_taken;  ///< zeroed before
  unsigned* found;         ///< not finite, in the first pass; zeroed before
  KeyTile* key_tiles;      ///< the table; zeroed before where there are turns
  int* offsets_fall;       ///< whether they do, which they must not; zeroed before
  int* turns;              ///< of turns.cuh
  int turns_of_head;
  bool has_rows_left;      ///< of dQ, for the schedule: sums, or rows without keys
  float* grad_query_sums;  ///< as sums_shape says; null: every dQ is stored at once
  MappedOperand query, key, value, grad_output, grad_query, grad_key, grad_value;
};

}  // namespace gdpa::hopper
