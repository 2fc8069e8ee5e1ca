// The table of key tiles of backward, which key_schedule.cuh writes and the tile scheduler warps read: the descriptions
// of key tiles, and with a batch map a second table with the query tiles of each batch entry.
#pragma once

#include "common/lanes.cuh"
#include "common/sequence.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"
#include "hopper/key_gradients.cuh"
#include "hopper/key_tile.cuh"

namespace gdpa::hopper {

/// Describes the query tiles `queries` of a batch entry, which attend to the keys from `first_key` on. `rows` are the
/// queries of the entry.
template <class Config, class Mask>
__device__ void describe_segment(QuerySegment<Mask>& segment, const BackwardArguments& arguments,
                                 const SequencePair& pair, const Rows& rows, int first_key,
                                 const typename Mask::Tiles& queries) {
  using Layout = typename Config::Layout;
  const Params& params = arguments.common.params;
  const int64_t b = pair.b;
  const int first_query = queries.first_row;
  const int group = static_cast<int>(divide_counts(params.heads_q, params.heads_k));
  segment.steps = queries.size() * group;
  segment.queries = queries;
  segment.writers = Mask::of(params, pair).writers_of(queries, first_key, Config::tile_keys, Config::tile_queries);
  segment.b = static_cast<int>(b);
  segment.length_q = rows.count;
  segment.out_scale = Config::Epilogue::scale_of(arguments.common, pair);
  segment.query = Layout::origin_of(arguments.query, params.queries, rows, b, first_query);
  segment.grad_output_y = Layout::output_origin_of(arguments.grad_output, params, rows, b, first_query).y;
  segment.grad_query_y = Layout::origin_of(arguments.grad_query, params.queries, rows, b, first_query).y;
  const Owner<Layout> owner{params.queries, arguments.common.packed_rows_q, params.heads_q, Config::tile_queries,
                            params.batch};
  // A split of all queries begins at a multiple of a tile, counted from the first split.
  const int64_t first_slot = Config::keys_shared ? rows.begin / Config::tile_queries : owner.first_slot_of(b);
  segment.semaphore = static_cast<int>(first_slot) + first_query / Config::tile_queries;
  const int64_t rows_before = Layout::is_jagged(params.queries) ? rows.begin
                              : arguments.queries_shared        ? 0
                                                                : b * params.queries.length;
  segment.grad_query = first_query + static_cast<int>(rows_before);  // a tensor map has no more rows
}

/// Sets the destinations of dQ of a key tile, after its other flags. Its entry has `keys` keys.
template <class Mask>
__device__ void set_destinations(KeyTile<Mask>& tile, const BackwardArguments& arguments, int keys) {
  if (tile.is(tile.whole)) {
    const GradQuery of_all = tile.is(tile.took_previous) ? GradQuery::added : GradQuery::stored;
    tile.set_destinations(of_all, of_all, of_all, of_all);
  } else if (keys <= arguments.direct_keys) {
    tile.set_destinations(GradQuery::stored, GradQuery::added, GradQuery::stored, GradQuery::added);
  } else {
    tile.set_destinations(GradQuery::first_writer, GradQuery::last_writer, GradQuery::stored, GradQuery::accumulated);
  }
}

/// Describes the key tile of `work`.
template <class Config, class Mask>
__device__ void describe_keys(KeyTile<Mask>& tile, const BackwardArguments& arguments,
                              const Owner<typename Config::Layout>& owner, const Work& work) {
  using Layout = typename Config::Layout;
  using Gradients = KeyGradients<Config>;
  const Params& params = arguments.common.params;
  const int first_key = work.tile * Config::tile_keys;
  tile.flags = 0;
  if (is_whole(Mask::keeps_all(params), work.keys.count, arguments.whole_keys)) {
    tile.flags |= tile.whole;
    if (first_key + Config::tile_keys < work.keys.count) tile.flags |= tile.takes_next;
    if (work.tile > 0) tile.flags |= tile.took_previous;
  }
  if constexpr (Config::has_dq_semaphores) set_destinations(tile, arguments, work.keys.count);
  tile.first_key = first_key;
  tile.length_k = work.keys.count;
  tile.first_head = pair_of_keys(params, work).head;
  tile.key_head = work.head;
  const int64_t index = work.entry;
  tile.key = Layout::origin_of(arguments.key, owner.side, work.keys, index, first_key);
  tile.value_y = Layout::origin_of(arguments.value, owner.side, work.keys, index, first_key).y;
  tile.grad_key_y = Layout::origin_of(arguments.grad_key, owner.side, work.keys, index, first_key).y;
  tile.grad_value_y = Layout::origin_of(arguments.grad_value, owner.side, work.keys, index, first_key).y;
  tile.grad_key = Layout::offset_of(Gradients::of_key(arguments), work.keys, index, first_key, work.head);
  tile.grad_value = Layout::offset_of(Gradients::of_value(arguments), work.keys, index, first_key, work.head);
}

/// The class of a key tile: all tiles of a class have the same query tiles of an entry. Without a mask, the last tile
/// of a sequence is a class, the first tile of a longer sequence, and all others. A mask may exclude different queries
/// for each key tile, and in each head.
template <class Config>
__device__ int class_of(const BackwardArguments& arguments, const Work& work) {
  const int tiles = (work.keys.count + Config::tile_keys - 1) / Config::tile_keys;
  if (Config::Mask::keeps_all(arguments.common.params)) return work.tile + 1 == tiles ? 2 : work.tile == 0 ? 0 : 1;
  const int head = arguments.masks_of_heads ? work.head : 0;
  return head * arguments.most_key_tiles + work.tile;
}

/// Whether the query tiles of the class are written with this key tile.
template <class Config>
__device__ bool represents_class(const BackwardArguments& arguments, const Work& work) {
  const bool keeps_all = Config::Mask::keeps_all(arguments.common.params);
  return (work.head == 0 || arguments.masks_of_heads) &&
         (!keeps_all || work.tile <= 1 || work.tile == (work.keys.count - 1) / Config::tile_keys);
}

/// Segments of the second table.
struct Segments {
  int first;
  int count;
};

/// Finds the segments of a key tile, and writes them if the tile represents its class. By a warp, with the work of one
/// tile.
template <class Config>
__device__ Segments find_segments(const BackwardArguments& arguments, const Work& work) {
  using Layout = typename Config::Layout;
  using Mask = typename Config::Mask;
  const CommonArguments& common = arguments.common;
  const int first_key = work.tile * Config::tile_keys;
  const int class_index = class_of<Config>(arguments, work);
  const int64_t first = class_index * common.params.batch + work.batch_begin;
  const bool writes = represents_class<Config>(arguments, work);
  int count = 0;
  for (int64_t at = work.batch_begin; at < work.batch_end; at += 32) {
    const int64_t place = at + lane_index();
    typename Mask::Tiles queries{};
    SequencePair pair = pair_of_keys(common.params, work);
    Rows rows{};
    if (place < work.batch_end) {
      const int64_t b = common.key_sequences.entries[place];
      rows = queries_of<Layout>(common, b);
      pair = pair_in_batch(common.params, b, pair.head, rows.count, pair.length_k);
      queries = Mask::of(common.params, pair).query_tiles(first_key, Config::tile_keys, Config::tile_queries);
    }
    __syncwarp();
    const unsigned present = __ballot_sync(0xffffffffu, queries.size() > 0);
    if (writes && queries.size() > 0) {
      const int before = __popc(present & ((1u << lane_index()) - 1));
      describe_segment<Config>(segment_table<Config>(arguments)[first + count + before], arguments, pair, rows,
                               first_key, queries);
    }
    count += __popc(present);
  }
  __syncwarp();
  return {static_cast<int>(first), count};
}

}  // namespace gdpa::hopper
