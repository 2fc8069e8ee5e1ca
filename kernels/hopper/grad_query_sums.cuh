// fp32 sums of dQ, for batch entries whose keys are several CTAs': the first tile of keys begins them, and the last one
// rounds them (turns.cuh). Where the batch shares an operand, or a head dim is above 128, they are cleared before
// backward and rounded behind it. Those of other entries are not touched (is_direct).
//
// They lie as backward adds them. Copies bring halves of the columns, or all, and of each four groups of 8 columns of a
// row, group i lies in the place of i ^ turn_of_sums(row). Registers bring groups of 16 columns, in the order in which
// four lanes hold them (column_of in common/tile.cuh): the eight rows that a warp adds at once follow each other.
#pragma once

#include "common/lanes.cuh"
#include "common/tile.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"
#include "hopper/rows.cuh"

namespace gdpa::hopper {

/// Places of work.cuh that a warp looks up at once, one a lane: the searches wait for memory together.
constexpr int places_at_once = 8;

/// Calls visit(work) for the places from `first` on, each lane of the first few with the work of its own; by a warp.
template <class Visit>
__device__ void look_up_places(const BackwardArguments& arguments, const Owner& owner, bool owns_queries,
                               unsigned first, Visit visit) {
  const auto places = static_cast<unsigned>(owner.heads * owner.places());
  const unsigned place = first + static_cast<unsigned>(lane_index());
  Work work{};
  if (lane_index() < places_at_once && place < places) {
    const int64_t entry = owner.jagged() ? find_entry_by_thread(owner, place) : 0;
    work = work_at(arguments.common, owner, owns_queries, place, entry);
  }
  visit(work);
  __syncwarp();
}

/// Rows of dQ that backward does not store, because they are summed or because there are no keys, as for rows that no
/// sequence has: those of one tile of one head.
struct RowsLeft {
  int64_t row;     ///< the first, counted over the batch
  int64_t offset;  ///< elements from the gradient's data to it
  int rows;
  int head;
  int keys;  ///< that they meet; 0: there is nothing to sum
  int turn;  ///< of the tile, among those of the head
  int last_key_tile;
};

/// Calls visit(left) for all of them; by a warp of each `warps` of a CTA.
template <class Config, unsigned warps, class Visit>
__device__ void for_all_rows_left(const BackwardArguments& arguments, Visit visit) {
  const Params& params = arguments.common.params;
  const bool is_shared = arguments.queries_shared;
  const Owner owner{params.queries, arguments.common.packed_rows_q, params.heads_q, Config::tile_queries,
                    is_shared ? 1 : params.batch};
  const auto places = static_cast<unsigned>(owner.heads * owner.places());
  for (unsigned first = (blockIdx.x * warps + threadIdx.x / 32) * places_at_once; first < places;
       first += gridDim.x * warps * places_at_once) {
    look_up_places(arguments, owner, true, first, [&](const Work& work) {
      const int row = work.tile * Config::tile_queries;
      const MaskOfSequence mask{params.mask, work.queries.count, work.keys.count};
      const Kept keys = mask.keys_of(row, Config::tile_queries);
      const RowsLeft mine = {row + (owner.jagged() ? work.queries.begin : work.batch_begin * params.queries.length),
                             element_offset(params.grad_query, work.queries, work.batch_begin, row, work.head),
                             min(Config::tile_queries, work.queries.count - row),
                             work.head,
                             is_shared ? 1 : keys.count,
                             static_cast<int>(owner.first_place_of(work.batch_begin)) + work.tile,
                             (keys.begin + keys.count - 1) / Config::tile_keys};
      const bool is_left = work.exists && !is_direct(params.mask, work.keys.count, arguments.direct_keys);
      for (unsigned left = __ballot_sync(0xffffffffu, is_left); left != 0; left &= left - 1) {
        const int source = __ffs(static_cast<int>(left)) - 1;
        const auto of_source = [source](auto value) { return __shfl_sync(0xffffffffu, value, source); };
        visit(RowsLeft{of_source(mine.row), of_source(mine.offset), of_source(mine.rows), of_source(mine.head),
                       of_source(mine.keys), of_source(mine.turn), of_source(mine.last_key_tile)});
        __syncwarp();
      }
    });
  }
}

template <class Config>
constexpr SumsShape shape_of_sums = sums_shape(Config::tile_queries, Config::head_dim, Config::head_dim_v);

/// The sums of a head's rows from `row` on, in one block of the columns.
template <class Config>
__device__ float* sums_at(const BackwardArguments& arguments, int64_t head, int block, int64_t row) {
  constexpr SumsShape shape = shape_of_sums<Config>;
  return arguments.grad_query_sums +
         ((head * shape.blocks + block) * arguments.common.packed_rows_q + row) * shape.columns;
}

/// Rows that a warp writes at once to shared memory have different turns.
constexpr unsigned sums_turns = 4;
__device__ inline unsigned turn_of_sums(int64_t row) { return static_cast<unsigned>(row) % sums_turns; }

/// Four columns of a row, rounded.
struct RoundedColumns {
  int first;
  uint2 words;
};

/// Sums from `place` of a row on, in the order of the gradient; by a warp, whose lanes have places that follow each
/// other.
template <class Config>
__device__ RoundedColumns in_order(int place, int64_t row, uint2 words) {
  if constexpr (is_wide(Config::head_dim, Config::head_dim_v)) {
    // A lane has two columns, and the two that lie 8 further: it gives a neighbour of these or of those.
    const bool is_odd = place / 4 % 2 != 0;
    const unsigned come = __shfl_xor_sync(0xffffffffu, is_odd ? words.x : words.y, 1);
    const int first = place / column_group * column_group + column_of(place % column_group);
    if (is_odd) return {first + 6, {come, words.y}};
    return {first, {words.x, come}};
  } else {
    return {place ^ static_cast<int>(turn_of_sums(row)) * 8, words};
  }
}

/// By a warp.
template <class Config>
__device__ void clear_sums(const BackwardArguments& arguments, const RowsLeft& left) {
  const int chunks = left.rows * shape_of_sums<Config>.columns / 4;
  for (int block = 0; block < shape_of_sums<Config>.blocks; ++block) {
    auto* const to = reinterpret_cast<float4*>(sums_at<Config>(arguments, left.head, block, left.row));
    for (int i = lane_index(); i < chunks; i += 32) to[i] = {};
  }
}

template <class Config>
constexpr int round_grad_query_threads = 256;
template <class Config>
constexpr int round_grad_query_shared_bytes = 0;

/// A kernel of its own: multiplies the sums by scale, and by out_scale where it is one number, and writes dQ.
///
/// Launch: grid any number of CTAs, best tiles of queries / 64; block round_grad_query_threads<Config>; no shared
/// memory.
template <class Config>
__device__ void round_grad_query(const BackwardArguments& arguments) {
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  constexpr SumsShape shape = shape_of_sums<Config>;
  constexpr int row_chunks = shape.blocks * shape.columns / 4;  // each a lane's
  constexpr int at_once = 4;                                    // so many that loads overlap
  constexpr unsigned warps = round_grad_query_threads<Config> / 32;
  const Params& params = arguments.common.params;
  const bool is_number = params.out_scale.kind == OutputScale::Kind::number;
  const auto factor = static_cast<float>(params.scale * (is_number ? params.out_scale.number : 1.0));
  for_all_rows_left<Config, warps>(arguments, [&](const RowsLeft& left) {
    if (left.keys == 0) return;
    const int rows = left.rows;
    auto* const gradient = static_cast<Storage*>(params.grad_query.data) + left.offset;
    for (int begin = 0; begin < rows * row_chunks; begin += at_once * 32) {
      const auto chunk = [begin](int i) { return begin + i * 32 + lane_index(); };
      float4 four[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int row = chunk(i) / row_chunks, place = chunk(i) % row_chunks * 4;
        const float* const sums = sums_at<Config>(arguments, left.head, place / shape.columns, left.row + row);
        four[i] = row < rows ? *reinterpret_cast<const float4*>(sums + place % shape.columns) : float4{};
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int row = chunk(i) / row_chunks, place = chunk(i) % row_chunks * 4;
        const uint2 words = {Element::pack(four[i].x * factor, four[i].y * factor),
                             Element::pack(four[i].z * factor, four[i].w * factor)};
        const RoundedColumns columns = in_order<Config>(place, left.row + row, words);
        if (row < rows && columns.first < Config::head_dim) {
          *reinterpret_cast<uint2*>(gradient + row * params.grad_query.row_stride + columns.first) = columns.words;
        }
      }
    }
  });
}

}  // namespace gdpa::hopper
