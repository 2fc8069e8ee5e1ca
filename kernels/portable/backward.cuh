// Backward on the tensor cores of any GPU since Ampere: dK and dV, and dQ by reduction.
//
// A CTA owns one tile of keys of one key head and walks over the tiles of queries that meet it, of every query head of
// the group. Scores are recomputed, transposed, so that P^T and dS^T lie in registers as A operands:
//
//     K, V            ->  shared memory, once
//     Q, dO tile i    ->  stage i % stages, copied `stages - 1` tiles ahead
//     S^T = K Q^T, dP^T = V dO^T   ->  registers      P = f(scale * S), dS = dP * f'(scale * S)
//     dV += P^T dO,   dK += dS^T Q ->  registers, which hold the sums of the whole walk
//     dS              ->  shared memory: the other warps' keys are needed too
//     dQ = dS K       ->  added to an fp32 sum in global memory, which reduce.cuh then rounds
//
// key_warps split the keys. Where dK and dV do not fit in the registers of warps that own all columns (d > 128),
// column_warps split the columns, and, for the scores, the queries; P then goes through shared memory as dS does. A
// tile of fewer than 16 queries for each column warp is not split: every one of them computes all its scores.
//
// The additions to dQ come in any order, so dQ differs in the last bits from run to run. Deterministic:
// reduce_grad_query = false here, and backward_query.cuh computes dQ. dK and dV are always summed in one order.
//
// K and V shared by the batch: the batch is cut into parts, a CTA walks over one, and writes fp32 sums, one slab for
// each part, that reduce.cuh adds up in order.
//
// Launch: grid as schedule.cuh says, keys own the work; block backward_threads<Config>; dynamic shared memory
//         backward_shared_bytes<Config>. Workspace: grad_query_sum where reduce_grad_query, zeroed before; the slabs of
//         grad_key_sum and grad_value_sum where keys_shared, not zeroed.
//
// Config: struct with
//     using Element, Activation;                types.cuh; what backward takes of src/activation/function.h
//     int head_dim, head_dim_v;                 multiples of 8, at most 256
//     int tile_keys, tile_queries;              multiples of 16 * key_warps and of 16
//     int key_warps, column_warps, stages, ctas;
//     bool aligned;                             every row of every operand begins at a multiple of 16 bytes
//     bool reduce_grad_query, keys_shared;
//     bool computes_grad_key, computes_grad_value;   products that only a gradient needs that is not computed are left
//     out
#pragma once

#include "common/tile.cuh"
#include "portable/schedule.cuh"

namespace gdpa::portable {

template <class Config>
struct BackwardTiles {
  using Element = typename Config::Element;
  static constexpr int warp_columns = columns_of_warp(Config::head_dim, Config::column_warps);
  static constexpr int warp_columns_v = columns_of_warp(Config::head_dim_v, Config::column_warps);
  static constexpr int columns = warp_columns * Config::column_warps;
  static constexpr int columns_v = warp_columns_v * Config::column_warps;
  using QueryOrKey = SharedTile<Element, columns>;
  using Value = SharedTile<Element, columns_v>;
  using Scores = SharedTile<Element, Config::tile_queries>;  ///< rows are keys

  static constexpr int warps = Config::key_warps * Config::column_warps;
  static constexpr int threads = warps * 32;
  static constexpr int warp_keys = Config::tile_keys / Config::key_warps;
  static constexpr int row_tiles = warp_keys / 16;
  /// Scores are split by queries where each column warp can have 16; else every one of them computes all.
  static constexpr bool weights_shared = Config::column_warps > 1 &&
                                         Config::tile_queries % (16 * Config::column_warps) == 0;
  static constexpr int warp_queries = Config::tile_queries / (weights_shared ? Config::column_warps : 1);

  // dQ of a tile: warps split the queries, 32 each where there are so many, and then the columns. The last warps may
  // compute columns past the last one, from whatever lies there; they are never stored.
  static constexpr int dq_rows = Config::tile_queries % 32 == 0 ? 32 : 16;
  static constexpr int dq_row_warps = Config::tile_queries / dq_rows < warps ? Config::tile_queries / dq_rows : warps;
  static constexpr int dq_row_tiles = Config::tile_queries / dq_row_warps / 16;
  static constexpr int dq_column_warps = warps / dq_row_warps;
  static constexpr int dq_columns = padded_columns((columns + dq_column_warps - 1) / dq_column_warps);

  static constexpr int key_bytes = QueryOrKey::bytes(Config::tile_keys);
  static constexpr int value_bytes = Value::bytes(Config::tile_keys);
  static constexpr int query_bytes = QueryOrKey::bytes(Config::tile_queries);
  static constexpr int stage_bytes = query_bytes + Value::bytes(Config::tile_queries);
  static constexpr int scores_bytes = Scores::bytes(Config::tile_keys);
  /// dS, and with it dP and V, serves dQ and dK.
  static constexpr bool computes_grad_scores = Config::reduce_grad_query || Config::computes_grad_key;
  static constexpr bool scores_shared = weights_shared || Config::reduce_grad_query;
  static constexpr int shared_bytes = key_bytes + value_bytes + Config::stages * stage_bytes +
                                      (scores_shared ? scores_bytes : 0) + (weights_shared ? scores_bytes : 0);
};

template <class Config>
constexpr int backward_threads = BackwardTiles<Config>::threads;
template <class Config>
constexpr int backward_shared_bytes = BackwardTiles<Config>::shared_bytes;

/// The queries of entry b. A CTA whose keys are its own stays in one entry, whose rows are known.
template <class Config>
__device__ Rows queries_met(const CommonArguments& arguments, const Work& work, int64_t b) {
  return Config::keys_shared ? queries_of(arguments, b) : work.queries;
}

/// A tile of queries: which entry, which head of queries, its first query; head is -1 behind the last tile.
struct QueryPlace {
  int64_t b;
  int head;
  int query;
};

/// The walk of one CTA: batch entries of its part, query heads of its group, tiles of queries that meet its keys.
template <class Config>
struct QueryWalk {
  const CommonArguments& arguments;
  const Work& work;
  QueryPlace place;
  int queries_begin;
  int queries_end;

  __device__ QueryWalk(const CommonArguments& arguments_, const Work& work_) : arguments(arguments_), work(work_) {
    place = {work.batch_begin, first_head(), 0};
    enter();
  }

  __device__ int group() const { return static_cast<int>(arguments.params.heads_q / arguments.params.heads_k); }
  __device__ int first_head() const { return work.head * group(); }

  /// Goes to the first tile of the place's entry, or of the next one that has any.
  __device__ void enter() {
    for (; place.b < work.batch_end; ++place.b) {
      const Rows queries = queries_met<Config>(arguments, work, place.b);
      const MaskOfSequence mask{arguments.params.mask, queries.count, work.keys.count};
      const Kept met = mask.queries_of(work.tile * Config::tile_keys, Config::tile_keys);
      queries_begin = met.begin / Config::tile_queries * Config::tile_queries;
      queries_end = met.begin + met.count;
      place.query = queries_begin;
      if (met.count > 0) return;
    }
    place.head = -1;
  }

  __device__ void next() {
    if (place.head < 0) return;
    place.query += Config::tile_queries;
    if (place.query < queries_end) return;
    place.query = queries_begin;
    if (++place.head < first_head() + group()) return;
    place.head = first_head();
    ++place.b;
    enter();
  }
};

/// P = f(scale * S) and dS = dP * f'(scale * S), rounded, for columns [step, step + 1) * depth of a product; 0 where
/// the mask does not keep the score. Rows are keys, columns queries.
template <class Config, bool edge, int row_tiles, int columns, int depth>
__device__ void differentiate(int step, const Sums<row_tiles, columns>& scores,
                              const Sums<row_tiles, columns>& grad_weights,
                              Fragments<typename Config::Element, row_tiles, depth>& weights,
                              Fragments<typename Config::Element, row_tiles, depth>& grad_scores, float scale,
                              float weight_factor, const Kept (&kept)[row_tiles][2], int first_query) {
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
    for (int n = 0; n < depth / 8; ++n) {
      const int column_tile = step * (depth / 8) + n;
      float value[4];
      float gradient[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float derivative;
        Config::Activation::value_and_derivative(scores.at[r][column_tile].part[i] * scale, value[i], derivative);
        gradient[i] = grad_weights.at[r][column_tile].part[i] * derivative;  // 0 where dS is not computed
        if constexpr (Config::keys_shared) {
          value[i] *= weight_factor;
          gradient[i] *= weight_factor;
        }
        if (edge && !kept[r][i / 2].holds(first_query + Sums<row_tiles, columns>::column(column_tile, i))) {
          value[i] = gradient[i] = 0.0f;
        }
      }
      if constexpr (Config::computes_grad_value) weights.set(r, n, value);
      if constexpr (BackwardTiles<Config>::computes_grad_scores) grad_scores.set(r, n, gradient);
    }
  }
}

/// What one warp multiplies: its rows of the tiles, its place in the shared P and dS, and its columns of dK and dV.
template <class Config>
struct WarpTiles {
  using Tiles = BackwardTiles<Config>;
  typename Tiles::QueryOrKey key;
  typename Tiles::Value value;
  typename Tiles::QueryOrKey query;
  typename Tiles::Value grad_output;
  typename Tiles::Scores weights;
  typename Tiles::Scores grad_scores;
  int first_key;
  int first_query;
  int column;
  int column_v;
};

/// What one tile of queries adds to dK and dV, but for the part that waits for other warps: P^T and dS^T of this warp's
/// keys and queries, to shared memory where others need them, and the two products where they do not. P and dS are made
/// a step at a time, so that tensor cores and the function's arithmetic run together.
template <class Config, bool edge, class KeySums, class ValueSums>
__device__ void contribute(KeySums& grad_key, ValueSums& grad_value, const WarpTiles<Config>& tiles, float scale,
                           float weight_factor, const MaskOfSequence& mask) {
  using Tiles = BackwardTiles<Config>;
  using Element = typename Config::Element;
  using Scores = Sums<Tiles::row_tiles, Tiles::warp_queries>;
  constexpr int depth = product_depth<Element>;
  Kept kept[Tiles::row_tiles][2] = {};
  if constexpr (edge) {
    for (int r = 0; r < Tiles::row_tiles; ++r) {
      for (int half = 0; half < 2; ++half) kept[r][half] = mask.column(tiles.first_key + Scores::row(r, half * 2));
    }
  }
  Scores scores;
  Scores grad_weights;
  multiply_rows(scores, tiles.key, tiles.query);
  if constexpr (Tiles::computes_grad_scores) multiply_rows(grad_weights, tiles.value, tiles.grad_output);
#pragma unroll
  for (int step = 0; step < Tiles::warp_queries / depth; ++step) {
    Fragments<Element, Tiles::row_tiles, depth> weights;
    Fragments<Element, Tiles::row_tiles, depth> grad_scores;
    differentiate<Config, edge>(step, scores, grad_weights, weights, grad_scores, scale, weight_factor, kept,
                                tiles.first_query);
    // Where every column warp has all the scores, one of them stores them.
    if constexpr (Tiles::scores_shared && Tiles::computes_grad_scores) {
      if (Tiles::weights_shared || tiles.column == 0) grad_scores.store(tiles.grad_scores.from(0, step * depth));
    }
    if constexpr (Config::computes_grad_value) {
      if constexpr (Tiles::weights_shared) {
        weights.store(tiles.weights.from(0, step * depth));
      } else {
        multiply_fragments(grad_value, weights, tiles.grad_output.from(step * depth, tiles.column_v));
      }
    }
    if constexpr (Config::computes_grad_key && !Tiles::weights_shared) {
      multiply_fragments(grad_key, grad_scores, tiles.query.from(step * depth, tiles.column));
    }
  }
}

/// dQ += factor * dS K for one tile of queries, into the fp32 sum.
template <class Config>
__device__ void reduce_grad_query(const CommonArguments& arguments, const Work& work, const QueryPlace& at,
                                  typename BackwardTiles<Config>::Scores grad_scores,
                                  typename BackwardTiles<Config>::QueryOrKey key, float factor) {
  using Tiles = BackwardTiles<Config>;
  const int warp = warp_index();
  const int row = warp / Tiles::dq_column_warps * Tiles::dq_row_tiles * 16;
  const int column = warp % Tiles::dq_column_warps * Tiles::dq_columns;
  if (warp >= Tiles::dq_row_warps * Tiles::dq_column_warps || column >= Tiles::columns) return;
  Sums<Tiles::dq_row_tiles, Tiles::dq_columns> sums;
  multiply_columns<Config::tile_keys>(sums, grad_scores.from(0, row), key.from(0, column));
  const Rows queries = queries_met<Config>(arguments, work, at.b);
  const Operand& target = arguments.grad_query_sum;
  auto* to = static_cast<float*>(target.data) + element_offset(target, queries, at.b, at.query + row, at.head) + column;
  const int rows_left = queries.count - at.query - row;
  visit_sums(sums, factor, [&](int r, int c, const float(&values)[4]) {
    if (r < rows_left && column + c < padded_columns(Config::head_dim))
      reduce_add(to + r * target.row_stride + c, values);
  });
}

/// Stores the sums of dK or dV: rounded, or as fp32 into the slab of this part of the batch.
template <class Config, int valid_columns, class Tile, class Gradient>
__device__ void store_gradient(const Gradient& sums, float factor, Tile staging, const Operand& output,
                               const Operand& slab, const Work& work, int warp_key, int column) {
  const Rows keys = work.keys;
  using Tiles = BackwardTiles<Config>;
  const int first_key = work.tile * Config::tile_keys;
  if constexpr (Config::keys_shared) {
    auto* to = static_cast<float*>(slab.data) +
               element_offset(slab, keys, work.owner, first_key + warp_key, work.head) + column;
    visit_sums(sums, factor, [&](int r, int c, const float(&values)[4]) {
      if (first_key + warp_key + r >= keys.count || column + c >= padded_columns(valid_columns)) return;
      *reinterpret_cast<float4*>(to + r * slab.row_stride + c) = {values[0], values[1], values[2], values[3]};
    });
  } else {
    using Storage = typename Config::Element::Storage;
    stage_sums(sums, factor, staging.from(warp_key, column));
    __syncthreads();
    store_rows<Tiles::threads, Config::aligned, Config::tile_keys, valid_columns>(
        staging,
        static_cast<Storage*>(output.data) + element_offset(output, keys, work.batch_begin, first_key, work.head),
        output.row_stride, keys.count - first_key);
  }
}

template <class Config>
__device__ void backward_tile(const CommonArguments& arguments, const Work& work, unsigned shared) {
  using Tiles = BackwardTiles<Config>;
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  using KeyTile = typename Tiles::QueryOrKey;
  using ValueTile = typename Tiles::Value;
  using ScoresTile = typename Tiles::Scores;
  constexpr int row_tiles = Tiles::row_tiles;
  const Params& params = arguments.params;
  const KeyTile key_tile{shared};
  const ValueTile value_tile{shared + Tiles::key_bytes};
  const unsigned stages = value_tile.base + Tiles::value_bytes;
  const ScoresTile grad_scores_tile{stages + Config::stages * Tiles::stage_bytes};
  const ScoresTile weights_tile{grad_scores_tile.base + Tiles::scores_bytes};
  const auto query_tile = [&](int stage) {
    return KeyTile{stages + static_cast<unsigned>(stage * Tiles::stage_bytes)};
  };
  const auto grad_output_tile = [&](int stage) { return ValueTile{query_tile(stage).base + Tiles::query_bytes}; };

  __shared__ QueryPlace places[Config::stages];  // of the tiles in the stages
  const auto load_stage = [&](int stage, const QueryPlace& at) {
    if (threadIdx.x == 0) places[stage] = at;
    if (at.head >= 0) {
      const Rows queries = queries_met<Config>(arguments, work, at.b);
      load_rows<Tiles::threads, Config::aligned, Config::tile_queries, Config::head_dim>(
          query_tile(stage),
          static_cast<const Storage*>(params.query.data) +
              element_offset(params.query, queries, at.b, at.query, at.head),
          params.query.row_stride, queries.count - at.query);
      load_rows<Tiles::threads, Config::aligned, Config::tile_queries, Config::head_dim_v>(
          grad_output_tile(stage),
          static_cast<const Storage*>(params.grad_output.data) +
              element_offset(params.grad_output, queries, at.b, at.query, at.head),
          params.grad_output.row_stride, queries.count - at.query);
    }
    commit_copies();
  };

  load_rows<Tiles::threads, Config::aligned, Config::tile_keys, Config::head_dim>(
      key_tile,
      static_cast<const Storage*>(params.key.data) +
          element_offset(params.key, work.keys, work.batch_begin, work.tile * Config::tile_keys, work.head),
      params.key.row_stride, work.keys.count - work.tile * Config::tile_keys);
  if constexpr (Tiles::computes_grad_scores) {
    load_rows<Tiles::threads, Config::aligned, Config::tile_keys, Config::head_dim_v>(
        value_tile,
        static_cast<const Storage*>(params.value.data) +
            element_offset(params.value, work.keys, work.batch_begin, work.tile * Config::tile_keys, work.head),
        params.value.row_stride, work.keys.count - work.tile * Config::tile_keys);
  }
  const int warp_key = warp_index() / Config::column_warps * Tiles::warp_keys;
  const int column_warp = warp_index() % Config::column_warps;
  const int warp_query = Tiles::weights_shared ? column_warp * Tiles::warp_queries : 0;
  const int column = column_warp * Tiles::warp_columns;
  const int column_v = column_warp * Tiles::warp_columns_v;
  const float score_scale = static_cast<float>(params.scale) * Config::Activation::score_factor;
  const auto scale = [&] { return score_scale * (1.0f / Config::Activation::score_factor); };  // a register less
  // out_scale multiplies the finished sums. Keys that the batch shares sum over entries that differ in it: then P and
  // dS take it.
  const float factor = Config::keys_shared ? 1.0f : out_scale_of(arguments, work.batch_begin, work.queries, work.keys);
  Sums<row_tiles, Tiles::warp_columns> grad_key;
  Sums<row_tiles, Tiles::warp_columns_v> grad_value;

  QueryWalk<Config> walk(arguments, work);
  for (int stage = 0; stage < Config::stages - 1; ++stage, walk.next()) load_stage(stage, walk.place);
  for (int stage = 0;; stage = stage + 1 == Config::stages ? 0 : stage + 1) {
    if constexpr (Config::stages == 1) {
      __syncthreads();  // all are done with the tile before
      load_stage(0, walk.place);
      wait_for_copies<0>();
      __syncthreads();
    } else {
      wait_for_copies<Config::stages - 2>();
      __syncthreads();  // this stage is there for all, and all are done with the one before it
      load_stage(stage == 0 ? Config::stages - 1 : stage - 1, walk.place);
    }
    walk.next();
    const QueryPlace& at = places[stage];
    if (at.head < 0) break;

    const Rows queries = queries_met<Config>(arguments, work, at.b);
    const MaskOfSequence mask{params.mask, queries.count, work.keys.count};
    const float weight_factor = Config::keys_shared ? out_scale_of(arguments, at.b, queries, work.keys) : 1.0f;
    const int first_key = work.tile * Config::tile_keys;
    const WarpTiles<Config> tiles{key_tile.from_row(warp_key),
                                  value_tile.from_row(warp_key),
                                  query_tile(stage).from_row(warp_query),
                                  grad_output_tile(stage).from_row(warp_query),
                                  weights_tile.from(warp_key, warp_query),
                                  grad_scores_tile.from(warp_key, warp_query),
                                  first_key + warp_key,
                                  at.query + warp_query,
                                  column,
                                  column_v};
    if (mask.is_full(at.query, Config::tile_queries, first_key, Config::tile_keys)) {
      contribute<Config, false>(grad_key, grad_value, tiles, score_scale, weight_factor, mask);
    } else {
      contribute<Config, true>(grad_key, grad_value, tiles, score_scale, weight_factor, mask);
    }

    if constexpr (Tiles::scores_shared) __syncthreads();  // every warp's part of P and dS is there
    if constexpr (Tiles::weights_shared && Config::computes_grad_value) {
      multiply_tiles<Config::tile_queries>(grad_value, weights_tile.from_row(warp_key),
                                           grad_output_tile(stage).from(0, column_v));
    }
    if constexpr (Tiles::weights_shared && Config::computes_grad_key) {
      multiply_tiles<Config::tile_queries>(grad_key, grad_scores_tile.from_row(warp_key),
                                           query_tile(stage).from(0, column));
    }
    if constexpr (Config::reduce_grad_query) {
      reduce_grad_query<Config>(arguments, work, at, grad_scores_tile, key_tile, factor * scale());
    }
  }
  wait_for_copies<0>();
  __syncthreads();  // K and V are read no more, and copied where nothing met them: their places take dK and dV

  if constexpr (Config::computes_grad_key) {
    store_gradient<Config, Config::head_dim>(grad_key, factor * scale(), key_tile, params.grad_key,
                                             arguments.grad_key_sum, work, warp_key, column);
  }
  if constexpr (Config::computes_grad_value) {
    store_gradient<Config, Config::head_dim_v>(grad_value, factor, value_tile, params.grad_value,
                                               arguments.grad_value_sum, work, warp_key, column_v);
  }
}

template <class Config>
__device__ void backward(const CommonArguments& arguments) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const int64_t entries = Config::keys_shared ? arguments.parts : arguments.params.batch;
  for_all_work(arguments, key_owner<Config>(arguments, entries), false,
               [&](const Work& work) { backward_tile<Config>(arguments, work, shared_address(shared_memory)); });
}

}  // namespace gdpa::portable
