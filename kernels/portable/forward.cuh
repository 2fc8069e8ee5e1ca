// Forward on the tensor cores of any GPU since Ampere: O = out_scale * f(scale * Q K^T) V.
//
// A CTA owns one tile of queries of one head; its warps own 16 * row_tiles rows each. K and V stream through `stages`
// buffers of shared memory by asynchronous copies:
//
//     Q            ->  shared memory, once
//     K, V tile i  ->  stage i % stages, copied `stages - 1` tiles ahead
//     S = Q K^T    ->  registers        P = f(scale * S)  ->  registers, as the A operand of the next product
//     O += P V     ->  registers        O * out_scale     ->  the rows of Q in shared memory  ->  global memory
//
// There is no maximum and no sum to keep, so tiles are independent, and one barrier a tile is all the warps share.
//
// Launch: grid any number of CTAs from 1 on, best an upper bound of the work: heads_q * (packed_rows_q / tile_queries +
//         batch) for jagged queries, else heads_q * batch * ceil(length / tile_queries); block forward_threads<Config>;
//         dynamic shared memory forward_shared_bytes<Config>; no workspace but the counts of `prepare` (jagged queries).
//
// Config: struct with
//     using Element, Activation;                types.cuh; value(s)
//     int head_dim, head_dim_v;                 multiples of 8, at most 256
//     int tile_queries, tile_keys;              multiples of 16 * warps and of 16
//     int warps, stages, ctas;                  stages >= 2; CTAs that shall fit on one multiprocessor
//     bool aligned;                             every row of every operand begins at a multiple of 16 bytes
#pragma once

#include "common/tile.cuh"
#include "portable/schedule.cuh"

namespace gdpa::portable {

struct ForwardArguments {
  Params params;
  int64_t packed_rows_q;  ///< rows of the query operand, which jagged offsets are clamped to
  int64_t packed_rows_k;
  TileCounts tiles;  ///< of queries
};

template <class Config>
struct ForwardTiles {
  using Element = typename Config::Element;
  static constexpr int columns = padded_columns(Config::head_dim);
  static constexpr int columns_v = padded_columns(Config::head_dim_v);
  using QueryOrKey = SharedTile<Element, columns>;
  using Value = SharedTile<Element, columns_v>;

  static constexpr int threads = Config::warps * 32;
  static constexpr int warp_rows = Config::tile_queries / Config::warps;
  static constexpr int row_tiles = warp_rows / 16;
  static constexpr int query_bytes = Config::tile_queries * (QueryOrKey::pitch > Value::pitch ? QueryOrKey::pitch : Value::pitch);
  static constexpr int key_bytes = QueryOrKey::bytes(Config::tile_keys);
  static constexpr int stage_bytes = key_bytes + Value::bytes(Config::tile_keys);
  static constexpr int shared_bytes = query_bytes + Config::stages * stage_bytes;
};

template <class Config>
constexpr int forward_threads = ForwardTiles<Config>::threads;
template <class Config>
constexpr int forward_shared_bytes = ForwardTiles<Config>::shared_bytes;

/// P = f(scale * S), rounded; 0 where the mask does not keep the score.
template <class Config, bool edge, int row_tiles>
__device__ void activate(const Sums<row_tiles, Config::tile_keys>& scores,
                         Fragments<typename Config::Element, row_tiles, Config::tile_keys>& weights, float scale,
                         const MaskOfSequence& mask, int first_query, int first_key) {
  using Scores = Sums<row_tiles, Config::tile_keys>;
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
    Kept kept[2] = {};
    if constexpr (edge) {
      for (int half = 0; half < 2; ++half) kept[half] = mask.row(first_query + Scores::row(r, half * 2));
    }
#pragma unroll
    for (int n = 0; n < Config::tile_keys / 8; ++n) {
      float value[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        value[i] = Config::Activation::value(scores.at[r][n].part[i] * scale);
        if (edge && !kept[i / 2].holds(first_key + Scores::column(n, i))) value[i] = 0.0f;
      }
      weights.set(r, n, value);
    }
  }
}

/// O = out_scale * sums, by way of the shared memory of Q.
template <class Config, class Output>
__device__ void store_output(const ForwardArguments& arguments, const Work& work, const Output& output,
                             unsigned shared) {
  using Tiles = ForwardTiles<Config>;
  using Storage = typename Config::Element::Storage;
  const Params& params = arguments.params;
  const int64_t b = work.batch_begin;
  const Rows queries = rows_of(params.queries, b, arguments.packed_rows_q);
  const Rows keys = rows_of(params.keys, b, arguments.packed_rows_k);
  const int first_query = work.tile * Config::tile_queries;
  const typename Tiles::Value staging{shared};
  stage_sums(output, static_cast<float>(params.out_scale.of(b, queries.count, keys.count)),
             staging.from_row(warp_index() * Tiles::warp_rows));
  __syncthreads();
  store_rows<Tiles::threads, Config::aligned, Config::tile_queries, Config::head_dim_v>(
      staging,
      static_cast<Storage*>(params.output.data) +
          element_offset(params.output, queries, b, first_query, work.head),
      params.output.row_stride, queries.count - first_query);
}

template <class Config>
__device__ void forward_tile(const ForwardArguments& arguments, const Work& work, unsigned shared) {
  using Tiles = ForwardTiles<Config>;
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  using KeyTile = typename Tiles::QueryOrKey;
  using ValueTile = typename Tiles::Value;
  constexpr int row_tiles = Tiles::row_tiles;
  const Params& params = arguments.params;
  const int64_t b = work.batch_begin;
  const Rows queries = rows_of(params.queries, b, arguments.packed_rows_q);
  const Rows keys = rows_of(params.keys, b, arguments.packed_rows_k);
  const MaskOfSequence mask{params.mask, queries.count, keys.count};
  const int first_query = work.tile * Config::tile_queries;
  const int64_t key_head = params.key_head(work.head);
  const auto* query = static_cast<const Storage*>(params.query.data) +
                      element_offset(params.query, queries, b, first_query, work.head);
  const auto* key = static_cast<const Storage*>(params.key.data) + element_offset(params.key, keys, b, 0, key_head);
  const auto* value =
      static_cast<const Storage*>(params.value.data) + element_offset(params.value, keys, b, 0, key_head);

  // The keys that the mask leaves to these queries, in whole tiles.
  const Kept met = mask.keys_of(first_query, Config::tile_queries);
  const int keys_begin = met.begin / Config::tile_keys * Config::tile_keys;
  const int keys_end = met.begin + met.count;

  const auto key_tile = [&](int row) {
    const int stage = row / Config::tile_keys % Config::stages;
    return KeyTile{shared + static_cast<unsigned>(Tiles::query_bytes + stage * Tiles::stage_bytes)};
  };
  const auto value_tile = [&](int row) { return ValueTile{key_tile(row).base + Tiles::key_bytes}; };
  const auto load_stage = [&](int row) {
    if (row < keys_end) {
      load_rows<Tiles::threads, Config::aligned, Config::tile_keys, Config::head_dim>(
          key_tile(row), key + row * params.key.row_stride, params.key.row_stride, keys.count - row);
      load_rows<Tiles::threads, Config::aligned, Config::tile_keys, Config::head_dim_v>(
          value_tile(row), value + row * params.value.row_stride, params.value.row_stride, keys.count - row);
    }
    commit_copies();
  };

  load_rows<Tiles::threads, Config::aligned, Config::tile_queries, Config::head_dim>(
      KeyTile{shared}, query, params.query.row_stride, queries.count - first_query);
  constexpr int ahead = (Config::stages - 1) * Config::tile_keys;
  for (int row = 0; row < ahead; row += Config::tile_keys) load_stage(keys_begin + row);

  const int warp_row = warp_index() * Tiles::warp_rows;
  const bool has_rows = first_query + warp_row < queries.count;
  const KeyTile own_queries = KeyTile{shared}.from_row(warp_row);
  const float scale = static_cast<float>(params.scale);
  Sums<row_tiles, Tiles::columns_v> output;
  for (int first_key = keys_begin; first_key < keys_end; first_key += Config::tile_keys) {
    wait_for_copies<Config::stages - 2>();
    __syncthreads();  // this stage is there for all, and all are done with the one before it
    load_stage(first_key + ahead);
    if (!has_rows) continue;
    Sums<row_tiles, Config::tile_keys> scores;
    multiply_rows(scores, own_queries, key_tile(first_key));
    Fragments<Element, row_tiles, Config::tile_keys> weights;
    if (mask.is_full(first_query, Config::tile_queries, first_key, Config::tile_keys)) {
      activate<Config, false>(scores, weights, scale, mask, first_query + warp_row, first_key);
    } else {
      activate<Config, true>(scores, weights, scale, mask, first_query + warp_row, first_key);
    }
    multiply_fragments(output, weights, value_tile(first_key));
  }
  wait_for_copies<0>();
  __syncthreads();  // the copies of Q, also where there was no tile of keys, end before its rows take O
  store_output<Config>(arguments, work, output, shared);
}

template <class Config>
__global__ void __launch_bounds__(Config::warps * 32, Config::ctas)
    forward(const __grid_constant__ ForwardArguments arguments) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  __shared__ Work work;
  const Params& params = arguments.params;
  for (bool first = true; take_work(work, arguments.tiles, params.heads_q, params.batch, first); first = false) {
    forward_tile<Config>(arguments, work, shared_address(shared_memory));
  }
}

}  // namespace gdpa::portable
