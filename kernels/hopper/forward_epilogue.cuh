// Forward: the epilogue of a consumer warpgroup, which scales O, rounds it, and stores it. O of queries without keys is
// zero, or the addend. The tile scheduler warp writes it.
#pragma once

#include "hopper/query_major.cuh"
#include "hopper/rows.cuh"

namespace gdpa::hopper {

/// Stores O through shared memory or from registers. Products has the accumulators (forward.cuh).
template <class Config, class Products>
struct ForwardEpilogue : Products {
  using Base = Products;
  using Base::arguments, Base::columns_v, Base::leads, Base::output, Base::own_barrier, Base::shared, Base::warpgroup;
  using typename Base::Activation, typename Base::Element, typename Base::Shared, typename Base::Tile;

  __device__ __forceinline__ float factor_of(const Tile& tile) const {
    return Config::Epilogue::invertible(Activation::value_factor_of(arguments.common.params, tile.head) *
                                        arguments.common.output_factor * tile.out_scale);
  }
  __device__ __forceinline__ auto epilogue(const Tile& tile) const {
    return Config::Epilogue::of(arguments.common, tile.pair(arguments.common.params), factor_of(tile));
  }

  /// Begins the accumulators of O with Q, divided by the factor that the epilogue multiplies by.
  __device__ __forceinline__ void begin_with_query(const Tile& tile, int number) {
    // A division in full precision is a call, for which the main loop spills.
    float inverse;
    asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(factor_of(tile)));
    const auto rows = shared.query(number, warpgroup);
    const unsigned thread = thread_in_warpgroup(), lane = thread % 32;
    const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
#pragma unroll
    for (float& sum : output) sum = 0.0f;
#pragma unroll
    for (int step = 0; step < Base::steps; ++step) {
      unsigned loaded[4];
      if constexpr (!Config::query_in_registers) {
        load_matrices(loaded, rows.chunk(row, step * 2 + static_cast<int>(lane / 16)));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack<Element>(Config::query_in_registers ? Base::query[step][i] : loaded[i]);
        output[step * 8 + i * 2] = pair.x * inverse;
        output[step * 8 + i * 2 + 1] = pair.y * inverse;
      }
    }
  }

  /// Stores O through shared memory. The tensor map cuts off rows beyond the sequence.
  __device__ __forceinline__ void store_through_query(const Tile& tile, int number) {
    const auto staging = shared.output(number, warpgroup);
    const auto epilogue = this->epilogue(tile);
    const unsigned thread = thread_in_warpgroup(), lane = thread % 32;
    const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
    // The thread's first element.
    const int query = tile.first_query + warpgroup * Shared::rows + static_cast<int>(thread / 32 * 16 + lane / 4);
    const int column = static_cast<int>(lane % 4 * 2);
    const decltype(epilogue.row(0)) of_query[2] = {epilogue.row(query), epilogue.row(query + 8)};
#pragma unroll
    for (int j = 0; j < columns_v / 16; ++j) {
      unsigned matrix[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column_of_i = j * 16 + i / 2 * 8 + column;
        matrix[i] = Element::pack(of_query[i % 2](output[j * 8 + i * 2], column_of_i),
                                  of_query[i % 2](output[j * 8 + i * 2 + 1], column_of_i + 1));
      }
      store_matrices(staging.chunk(row, j * 2 + static_cast<int>(lane / 16)), matrix);
    }
    fence_proxy_async_shared();
    named_barrier_sync(own_barrier + warpgroup, warpgroup_threads);
    if (leads()) {
      staging.store(arguments.output.map, 0, tile.head,
                    Config::Layout::after({tile.query.x, tile.output_y}, warpgroup * Shared::rows));
      tma_store_commit();
      shared.tiles().consumer_release(number);
    }
  }

  __device__ __forceinline__ void store_from_registers(const Tile& tile, int number) {
    using Storage = typename Element::Storage;
    const Operand& operand = arguments.common.params.output;
    const int64_t first = Config::Layout::offset_at(arguments.output, operand, arguments.common.params.queries,
                                                    {tile.query.x, tile.output_y}, tile.head);
    const int row = warpgroup * Shared::rows;
    const auto epilogue = this->epilogue(tile);
    store_rows_from_registers<Element, Config::head_dim_v>(
        output, [&](int row_of_sum) { return epilogue.row(tile.first_query + row + row_of_sum); },
        static_cast<Storage*>(operand.data) + first + row * operand.row_stride, operand.row_stride,
        tile.length_q - tile.first_query - row);
    named_barrier_sync(own_barrier + warpgroup, warpgroup_threads);
    if (leads()) shared.tiles().consumer_release(number);
  }
};

/// Writes O of the tile of lane `source`, which has no keys. By a warp.
template <class Config>
__device__ void write_without_keys(const Params& params, const Work& work, int source) {
  using Storage = typename Config::Element::Storage;
  const int first_query = work.tile * Config::tile_queries;
  const auto offset_in = [&](const Operand& operand, const Rows& sequence) {
    return __shfl_sync(0xffffffffu,
                       Config::Layout::offset_of(operand, sequence, work.batch_begin, first_query, work.head), source);
  };
  const int rows = __shfl_sync(0xffffffffu, min(Config::tile_queries, work.queries.count - first_query), source);
  const Rows output_rows = Config::Layout::output_rows(params, work.queries, work.batch_begin);
  Storage* const to = static_cast<Storage*>(params.output.data) + offset_in(params.output, output_rows);
  const Storage* addend = nullptr;
  if constexpr (Config::Epilogue::has_addend) {
    addend = static_cast<const Storage*>(params.query.data) + offset_in(params.query, work.queries);
  }
  fill_rows<typename Config::Element, Config::head_dim_v>(to, params.output.row_stride, rows, addend,
                                                          params.query.row_stride);
}

}  // namespace gdpa::hopper
