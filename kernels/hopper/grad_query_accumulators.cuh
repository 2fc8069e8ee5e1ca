// The fp32 accumulators of dQ, for batch entries with many keys. A first and a last writer store and round them
// (dq_semaphore.cuh). With broadcast Q, or a head dim above 128, they are cleared before backward and rounded after it.
// Entries with few keys need no accumulators, because dQ is summed in the gradient.
//
// Their layout is the layout of the additions. TMA adds half of the columns, or all columns. Of each four groups of 8
// columns of a row, group i is at position i ^ accumulator_swizzle(row). Additions from registers have groups of 16
// columns, in the order of four lanes (column_of in common/tile.cuh). The eight rows that a warp adds at once are
// contiguous.
#pragma once

#include "common/lanes.cuh"
#include "common/tile.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"
#include "hopper/rows.cuh"

namespace gdpa::hopper {

/// Slots of work.cuh that a warp looks up at most at once, one for each lane, so that the searches wait for memory
/// together.
constexpr unsigned most_slots_at_once = 8;

/// Calls visit(work, slot, has_slot) for all slots of the owner below `slots`, a few at a time. Each lane has the
/// work of one slot. `has_slot`: whether the lane has one. If slots are few, a warp looks up fewer at once, so that all
/// warps have some. By all `warps` warps of a CTA.
template <unsigned warps, class Layout, class Visit>
__device__ void for_all_slots(const BackwardArguments& arguments, const Owner<Layout>& owner, bool owns_queries,
                              unsigned slots, Visit visit) {
  const auto slots_of_owner = static_cast<unsigned>(owner.heads * owner.slots());
  const unsigned all_warps = gridDim.x * warps;
  const unsigned at_once = min(max((slots + all_warps - 1) / all_warps, 1u), most_slots_at_once);
  const auto lane = static_cast<unsigned>(lane_index());
  for (unsigned first = (blockIdx.x * warps + threadIdx.x / 32) * at_once; first < slots;
       first += all_warps * at_once) {
    const unsigned slot = first + lane;
    Work work{};
    if (lane < at_once && slot < slots_of_owner) {
      const int64_t entry = owner.jagged() ? find_entry_by_thread(owner, slot) : 0;
      work = work_at(arguments.common, owner, owns_queries, slot, entry);
    }
    visit(work, slot, lane < at_once && slot < slots);
    __syncwarp();
  }
}

/// Calls visit(value of the lane) for each lane with `has`, one after the other. By the warp.
template <class Value, class Visit>
__device__ void for_each_lane_with(bool has, const Value& mine, Visit visit) {
  constexpr int words = sizeof(Value) / sizeof(int);
  static_assert(sizeof(Value) % sizeof(int) == 0, "whole words");
  struct Words {
    int at[words];
  };
  const Words of_mine = __builtin_bit_cast(Words, mine);
  for (unsigned left = __ballot_sync(0xffffffffu, has); left != 0; left &= left - 1) {
    const int source = __ffs(static_cast<int>(left)) - 1;
    Words of_source;
#pragma unroll
    for (int i = 0; i < words; ++i) of_source.at[i] = __shfl_sync(0xffffffffu, of_mine.at[i], source);
    visit(__builtin_bit_cast(Value, of_source));
    __syncwarp();
  }
}

/// Rows of dQ, of one query tile of one head, that need a semaphore, or accumulators, or zeros because they have no
/// key, as rows outside all sequences.
struct RowsToPrepare {
  int64_t row;     ///< the first row, counted over the batch
  int64_t offset;  ///< of this row in elements, from the data of the gradient
  int rows;
  int head;
  int key_tiles;    ///< 0: dQ is zero
  int semaphore;    ///< the slot of the tile among the slots of the head
  int last_number;  ///< of the last key tile (tile_list.cuh)
};

/// The offset in elements of these rows in an operand of the queries' shape.
template <class Config>
__device__ int64_t offset_of_counted_row(const Params& params, const Operand& operand, const RowsToPrepare& rows) {
  if (Config::Layout::is_jagged(params.queries)) return operand.offset(Sequences{}, 0, rows.row, rows.head);
  const int64_t b = divide_counts(rows.row, params.queries.length);
  return operand.offset(Sequences{}, b, rows.row - b * params.queries.length, rows.head);
}

/// Calls visit(rows) for all of them. By all `warps` warps of a CTA.
template <class Config, unsigned warps, class Visit>
__device__ void for_all_rows_to_prepare(const BackwardArguments& arguments, Visit visit) {
  const Params& params = arguments.common.params;
  const bool is_shared = arguments.queries_shared;
  using Layout = typename Config::Layout;
  using Mask = typename Config::Mask;
  const Owner<Layout> owner{params.queries, arguments.common.packed_rows_q, params.heads_q, Config::tile_queries,
                            is_shared ? 1 : params.batch};
  const auto slots = static_cast<unsigned>(owner.heads * owner.slots());
  for_all_slots<warps>(arguments, owner, true, slots, [&](const Work& work, unsigned, bool) {
    const int row = work.tile * Config::tile_queries;
    const auto keys = Mask::of(params, pair_of(params, work)).key_tiles(row, Config::tile_queries, Config::tile_keys);
    const RowsToPrepare mine = {row + (owner.jagged() ? work.queries.begin : work.batch_begin * params.queries.length),
                                Layout::offset_of(params.grad_query, work.queries, work.batch_begin, row, work.head),
                                min(Config::tile_queries, work.queries.count - row),
                                work.head,
                                is_shared ? 1 : keys.size(),
                                static_cast<int>(owner.first_slot_of(work.batch_begin)) + work.tile,
                                keys.last_number(Config::tile_keys)};
    const bool has_rows = work.exists && !is_whole(Mask::keeps_all(params), work.keys.count, arguments.whole_keys);
    for_each_lane_with(has_rows, mine, visit);
  });
}

template <class Config>
constexpr AccumulatorShape accumulator_shape = accumulator_shape_of(Config::tile_queries, Config::head_dim,
                                                                    Config::head_dim_v);

/// The accumulators of the rows of a head from `row` on, in one block of columns.
template <class Config>
__device__ float* accumulators_at(const BackwardArguments& arguments, int64_t head, int block, int64_t row) {
  constexpr AccumulatorShape shape = accumulator_shape<Config>;
  return arguments.grad_query_accumulators +
         ((head * shape.blocks + block) * arguments.common.packed_rows_q + row) * shape.columns;
}

/// Rows that a warp writes to shared memory at once have different swizzles.
constexpr unsigned accumulator_swizzles = 4;
__device__ inline unsigned accumulator_swizzle(int64_t row) {
  return static_cast<unsigned>(row) % accumulator_swizzles;
}

/// Four columns of a row, rounded.
struct RoundedColumns {
  int first;
  uint2 words;
};

/// Reorders accumulators from position `position` of a row on to the order of the gradient. By a warp with consecutive
/// positions.
template <class Config>
__device__ RoundedColumns in_gradient_order(int position, int64_t row, uint2 words) {
  if constexpr (is_wide(Config::head_dim, Config::head_dim_v)) {
    // A lane has two columns, and the two columns 8 further. It exchanges one pair with its neighbour.
    const bool is_odd = position / 4 % 2 != 0;
    const unsigned received = __shfl_xor_sync(0xffffffffu, is_odd ? words.x : words.y, 1);
    const int first = position / column_group * column_group + column_of(position % column_group);
    if (is_odd) return {first + 6, {received, words.y}};
    return {first, {words.x, received}};
  } else {
    return {position ^ static_cast<int>(accumulator_swizzle(row)) * 8, words};
  }
}

/// Clears the accumulators of some rows. By a warp.
template <class Config>
__device__ void clear_accumulators(const BackwardArguments& arguments, const RowsToPrepare& left) {
  const int chunks = left.rows * accumulator_shape<Config>.columns / 4;
  for (int block = 0; block < accumulator_shape<Config>.blocks; ++block) {
    auto* const to = reinterpret_cast<float4*>(accumulators_at<Config>(arguments, left.head, block, left.row));
    for (int i = lane_index(); i < chunks; i += 32) to[i] = {};
  }
}

template <class Config>
using round_grad_query_cta = CtaShape<256>;

/// A kernel: multiplies the accumulators by scale, and by out_scale if it is one number, rounds, and writes dQ.
///
/// Launch: grid any number of CTAs, best query tiles / 64, and at least two for each multiprocessor if each warp then
///         has a query tile.
template <class Config>
__device__ void round_grad_query(const BackwardArguments& arguments) {
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  constexpr AccumulatorShape shape = accumulator_shape<Config>;
  constexpr int row_chunks = shape.blocks * shape.columns / 4;  // of one lane each
  constexpr int at_once = 4;                                    // enough that loads overlap
  constexpr unsigned warps = round_grad_query_cta<Config>::threads / 32;
  const Params& params = arguments.common.params;
  const bool is_number = params.out_scale.kind == OutputScale::Kind::number;
  const auto factor = static_cast<float>(params.scale * (is_number ? params.out_scale.number : 1.0));
  for_all_rows_to_prepare<Config, warps>(arguments, [&](const RowsToPrepare& left) {
    if (left.key_tiles == 0) return;
    const int rows = left.rows;
    auto* const gradient = static_cast<Storage*>(params.grad_query.data) + left.offset;
    for (int begin = 0; begin < rows * row_chunks; begin += at_once * 32) {
      const auto chunk = [begin](int i) { return begin + i * 32 + lane_index(); };
      float4 four[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int row = chunk(i) / row_chunks, position = chunk(i) % row_chunks * 4;
        const float* const accumulators =
            accumulators_at<Config>(arguments, left.head, position / shape.columns, left.row + row);
        four[i] = row < rows ? *reinterpret_cast<const float4*>(accumulators + position % shape.columns) : float4{};
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int row = chunk(i) / row_chunks, position = chunk(i) % row_chunks * 4;
        const uint2 words = {Element::pack(four[i].x * factor, four[i].y * factor),
                             Element::pack(four[i].z * factor, four[i].w * factor)};
        const RoundedColumns columns = in_gradient_order<Config>(position, left.row + row, words);
        if (row < rows && columns.first < Config::head_dim) {
          *reinterpret_cast<uint2*>(gradient + row * params.grad_query.row_stride + columns.first) = columns.words;
        }
      }
    }
  });
}

}  // namespace gdpa::hopper
