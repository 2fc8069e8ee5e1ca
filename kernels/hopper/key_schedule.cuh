// The dealer of backward: one warp takes tiles of keys, finds the tiles of queries that meet each, and lays what the
// other warps ask of it into a ring in shared memory. Keys that meet no query have gradients of zero, which this warp
// writes itself.
#pragma once

#include "common/sequence.cuh"
#include "hopper/arguments.cuh"
#include "hopper/ring.cuh"
#include "hopper/rows.cuh"
#include "hopper/schedule.cuh"
#include "portable/work.cuh"

namespace gdpa::hopper {

/// A tile of keys of one head, and the tiles of queries that meet it: `query_tiles` of each head of its group.
struct KeyTile {
  int steps;       ///< tiles of queries of all heads; 0: there are no more tiles of keys
  int query_tiles;
  int full_begin;  ///< tiles of queries [full_begin, full_end) of a head need no test of their scores
  int full_end;
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
  int64_t grad_query;  ///< the row first_query among those of the sums
  int64_t grad_key;    ///< from the operand's data to the row first_key of key_head
  int64_t grad_value;
};

using KeyRing = Ring<KeyTile, 4>;

/// Describes the tile of `work`, which the queries `met` meet.
template <class Config>
__device__ void describe_key_tile(KeyTile& tile, const BackwardArguments& arguments, const portable::Work& work,
                                  const Kept& met) {
  constexpr int rows = Config::tile_queries;
  const Params& params = arguments.common.params;
  const MaskOfSequence mask{params.mask, work.queries.count, work.keys.count};
  const int first_key = work.tile * Config::tile_keys;
  const int first_query = met.begin / rows * rows;
  const int query_tiles = (met.begin + met.count - first_query + rows - 1) / rows;
  const int group = static_cast<int>(portable::whole_parts(params.heads_q, params.heads_k));
  tile.steps = query_tiles * group;
  tile.query_tiles = query_tiles;
  tile.first_query = first_query;
  tile.first_key = first_key;
  tile.length_q = work.queries.count;
  tile.length_k = work.keys.count;
  const auto is_full = [&](int i) { return mask.is_full(first_query + i * rows, rows, first_key, Config::tile_keys); };
  int begin = 0, end = query_tiles;
  while (begin < end && !is_full(begin)) ++begin;
  while (begin < end && !is_full(end - 1)) --end;
  tile.full_begin = begin;
  tile.full_end = end;
  tile.first_head = work.head * group;
  tile.key_head = work.head;
  const int64_t b = work.batch_begin;
  tile.out_scale = portable::out_scale_of(arguments.common, b, work.queries, work.keys);
  tile.query = origin_of(arguments.query, params.queries, work.queries, b, first_query);
  tile.grad_output_y = origin_of(arguments.grad_output, params.queries, work.queries, b, first_query).y;
  tile.key = origin_of(arguments.key, params.keys, work.keys, b, first_key);
  tile.value_y = origin_of(arguments.value, params.keys, work.keys, b, first_key).y;
  tile.grad_query = first_query + (params.queries.cumulative != nullptr ? work.queries.begin : b * params.queries.length);
  tile.grad_key = element_offset(params.grad_key, work.keys, b, first_key, work.head);
  tile.grad_value = element_offset(params.grad_value, work.keys, b, first_key, work.head);
}

/// The work of one warp: fills the ring, and ends it with a tile of no steps. `work` lies in shared memory: registers
/// are few.
template <class Config>
__device__ void deal_key_tiles(const BackwardArguments& arguments, const KeyRing& ring, portable::Work& work) {
  // As in share.cuh: tiles at one distance, which a mask may make equally long, shall not all fall to one CTA.
  constexpr unsigned turned_by = 7;
  using Storage = typename Config::Element::Storage;
  const Params& params = arguments.common.params;
  int dealt = 0;
  for (unsigned round = 0;; ++round) {
    const portable::Owner owner{params.keys, computed_anew(arguments.common.packed_rows_k), params.heads_k,
                                Config::tile_keys, computed_anew(params.batch)};
    const auto places = static_cast<unsigned>(owner.heads * owner.places());
    if (round * gridDim.x >= places) break;
    const unsigned place = round * gridDim.x + (blockIdx.x + round * turned_by) % gridDim.x;
    if (place >= places) continue;
    const portable::Work found = portable::find_work(arguments.common, owner, false, place);
    __syncwarp();
    if (lane_index() == 0) work = found;
    __syncwarp();
    if (!work.exists) continue;
    const int first_key = work.tile * Config::tile_keys;
    const Kept met = MaskOfSequence{params.mask, work.queries.count, work.keys.count}.queries_of(first_key,
                                                                                                Config::tile_keys);
    if (met.count > 0) {
      if (lane_index() == 0) {
        ring.wait_free(dealt);
        describe_key_tile<Config>(ring[dealt], arguments, work, met);
        ring.publish(dealt);
      }
      __syncwarp();
      ++dealt;
    } else {
      const int rows = min(Config::tile_keys, work.keys.count - first_key);
      const auto at = [&](const Operand& operand) {
        return static_cast<Storage*>(operand.data) +
               element_offset(operand, work.keys, work.batch_begin, first_key, work.head);
      };
      write_zero_rows<typename Config::Element, Config::head_dim>(at(params.grad_key), params.grad_key.row_stride,
                                                                  rows);
      write_zero_rows<typename Config::Element, Config::head_dim_v>(at(params.grad_value),
                                                                    params.grad_value.row_stride, rows);
    }
  }
  if (lane_index() == 0) {
    ring.wait_free(dealt);
    ring[dealt].steps = 0;
    ring.publish(dealt);
  }
}

}  // namespace gdpa::hopper
