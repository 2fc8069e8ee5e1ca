// The schedule of backward: a small kernel finds, for each slot of work.cuh, the key tile and the query tiles that
// attend to it, and writes their description into a table. Keys without a query have zero gradients, which this kernel
// writes. The tile scheduler warps of backward read the table (key_major.cuh).
#pragma once

#include "common/lanes.cuh"
#include "common/parameter_sum.cuh"
#include "common/sequence.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"
#include "hopper/dq_semaphore.cuh"
#include "hopper/grad_query_accumulators.cuh"
#include "hopper/head_groups.cuh"
#include "hopper/key_tile.cuh"
#include "hopper/rows.cuh"
#include "pipeline/dependent_launch.cuh"

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

/// The queries that attend to the keys of `work`: the queries of its batch entry, or none if several entries have these
/// keys. With broadcast K/V, a split of all queries as one sequence. Splits have equal lengths for any entries.
template <class Config>
__device__ Rows queries_that_meet(const BackwardArguments& arguments, const Work& work) {
  if (!Config::keys_shared) return work.queries;
  using Layout = typename Config::Layout;
  const CommonArguments& common = arguments.common;
  const Sequences& side = common.params.queries;
  const int64_t begin = Layout::rows_before(side, 0, common.packed_rows_q);
  const int64_t end = Layout::rows_before(side, common.params.batch, common.packed_rows_q);
  const int64_t rows = clamp(end - begin, 0, common.packed_rows_q);
  const auto first_of = [&](int64_t part) {
    return part < common.splits ? rows * part / common.splits / Config::tile_queries * Config::tile_queries : rows;
  };
  const int64_t first = first_of(work.entry);
  return {begin + first, static_cast<int>(clamp(first_of(work.entry + 1) - first, 0, most_gpu_rows))};
}

/// The segments of the key tiles of all lanes. By a warp.
template <class Config>
__device__ Segments find_segments_of_lanes(const BackwardArguments& arguments, const Work& work) {
  Segments segments{};
  for_each_lane_with(work.exists, work, [&](const Work& tile) {
    const Segments found = find_segments<Config>(arguments, tile);
    if (work.exists && tile.slot == work.slot) segments = found;
  });
  return segments;
}

template <class Config>
using key_schedule_cta = CtaShape<256>;

/// Clears the sums of the gradients of tensors to which the first pass has added. They are contiguous. The second pass
/// overwrites stored terms.
template <class Config>
__device__ void clear_parameter_sums(const Params& params) {
  for (int tensor = 0; tensor < most_parameters; ++tensor) {
    if ((Config::cleared_parameters >> tensor & 1) == 0) continue;
    const BoundTensor& gradient = params.grad_parameters[tensor];
    const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, threads = int64_t{gridDim.x} * blockDim.x;
    if (auto* const borders = static_cast<FloatSum*>(params.parameter_sums.borders); borders != nullptr) {
      const auto count = params.parameter_sums.copy_bytes / static_cast<int64_t>(sizeof(FloatSum));
      for (int64_t i = first; i < count; i += threads) borders[i] = {};
      continue;
    }
    int64_t count = 1;
    for (int axis = 0; axis < gradient.rank; ++axis) count *= gradient.sizes[axis];
    for (int copy = 0; copy < params.parameter_sums.copies; ++copy) {
      auto* const sums = copy_of_sums<typename Config::Sum>(gradient.data, params.parameter_sums, copy);
      for (int64_t i = first; i < count; i += threads) sums[i] = {};
    }
  }
}

/// Initialises the semaphores of a batch that shares the keys: all query tiles attend to all key tiles.
template <class Config>
__device__ void initialise_semaphores(const BackwardArguments& arguments) {
  const Params& params = arguments.common.params;
  const int value = DqSemaphore::initial(static_cast<int>(params.keys.length - 1) / Config::tile_keys);
  const int64_t count = params.heads_q * int64_t{arguments.semaphores_per_head},
                threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    arguments.dq_semaphores[i] = value;
  }
}

/// The kernel that writes the table, one lane for each slot. It also prepares rows of dQ: zeros, or the addend,
/// for rows without keys, and accumulators. It runs again before a second pass.
///
/// With dQ semaphores, the table was cleared before, because tiles are not in their own slots then.
///
/// Launch: grid any number of CTAs, best slots or query tiles / 64, and if it clears accumulators, as many as
///         round_grad_query.
template <class Config>
__device__ void key_schedule(const BackwardArguments& arguments) {
  using Gradients = KeyGradients<Config>;
  using Element = typename Gradients::Element;
  using Layout = typename Config::Layout;
  using Mask = typename Config::Mask;
  constexpr unsigned warps = key_schedule_cta<Config>::threads / 32;
  const Params& params = arguments.common.params;
  const auto owner = owner_of_keys<Layout>(arguments.common, Config::tile_keys,
                                           Config::keys_shared ? arguments.common.splits : params.batch);
  allow_next_kernel();
  const unsigned slots = arguments.slots;  // of the table. Wrong lengths or gaps may leave slots without work.
  if (Config::pass == Pass::second) {
    if (*arguments.non_finite == 0) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) *arguments.slots_taken = 0;
    if constexpr (Config::cleared_parameters != 0) clear_parameter_sums<Config>(params);
  }
  if (Config::has_dq_semaphores) check_offsets_rise<Layout>(arguments);
  const auto prepare = [&](const RowsToPrepare& left) {
    if (left.key_tiles == 0) {
      using Storage = typename Config::Element::Storage;
      const Storage* addend = nullptr;
      if constexpr (Config::Epilogue::has_addend) {
        addend = static_cast<const Storage*>(params.grad_output.data) +
                 offset_of_counted_row<Config>(params, params.grad_output, left);
      }
      fill_rows<typename Config::Element, Config::head_dim>(static_cast<Storage*>(params.grad_query.data) + left.offset,
                                                            params.grad_query.row_stride, left.rows, addend,
                                                            params.grad_output.row_stride);
      return;
    }
    if (!Config::has_dq_semaphores) {
      clear_accumulators<Config>(arguments, left);
    } else if (!Config::keys_shared && lane_index() == 0) {
      *semaphore_of(arguments, left.head, left.semaphore) = DqSemaphore::initial(left.last_number);
    }
  };
  if constexpr (Config::has_dq_semaphores && Config::keys_shared) initialise_semaphores<Config>(arguments);
  if (Config::computes_grad_query && arguments.prepares_grad_query)
    for_all_rows_to_prepare<Config, warps>(arguments, prepare);
  for_all_slots<warps>(arguments, owner, false, slots, [&](Work work, unsigned slot, bool has_slot) {
    work.queries = queries_that_meet<Config>(arguments, work);
    const int first_key = work.tile * Config::tile_keys;
    typename Mask::Tiles queries{};
    Segments segments{};
    if constexpr (Layout::has_batch_map) {
      segments = find_segments_of_lanes<Config>(arguments, work);
    } else if (work.exists) {
      queries =
          Mask::of(params, pair_of_keys(params, work)).query_tiles(first_key, Config::tile_keys, Config::tile_queries);
    }
    const bool has_queries = Layout::has_batch_map ? segments.count > 0 : queries.size() > 0;
    const auto describe = [&](KeyTile<Mask>& tile) {
      describe_keys<Config>(tile, arguments, owner, work);
      if constexpr (Layout::has_batch_map) {
        static_cast<QuerySegment<Mask>&>(tile) = {segments.count, segments.first};
      } else {
        describe_segment<Config>(tile, arguments, pair_of_keys(params, work), work.queries, first_key, queries);
      }
    };
    if constexpr (Config::has_dq_semaphores) {
      const auto in_head_group = [&] {
        return static_cast<unsigned>(slot_in_head_group<Mask>(
            arguments.common, arguments.whole_keys, arguments.heads_per_group, owner, work, Config::by_heads));
      };
      const unsigned slot_of_tile = has_queries ? in_head_group() : slots;
      if (slot_of_tile < slots) describe(key_tile_table<Config>(arguments)[slot_of_tile]);
    } else if (has_slot) {
      KeyTile<Mask>& tile = key_tile_table<Config>(arguments)[slot];
      if (has_queries) {
        describe(tile);
      } else {
        tile = KeyTile<Mask>{};
      }
    }
    const Operand &of_key = Gradients::of_key(arguments), &of_value = Gradients::of_value(arguments);
    for_each_lane_with(work.exists && !has_queries, work, [&](const Work& left) {
      const int row = left.tile * Config::tile_keys, rows = min(Config::tile_keys, left.keys.count - row);
      const auto begin_in = [&](const Operand& operand) {
        return static_cast<typename Element::Storage*>(operand.data) +
               Layout::offset_of(operand, left.keys, left.entry, row, left.head);
      };
      if constexpr (Config::computes_grad_key) {
        fill_rows<Element, Gradients::columns>(begin_in(of_key), of_key.row_stride, rows);
        __syncwarp();
      }
      if constexpr (Config::computes_grad_value) {
        fill_rows<Element, Gradients::columns_v>(begin_in(of_value), of_value.row_stride, rows);
      }
    });
  });
}

}  // namespace gdpa::hopper
