// Forward: the epilogue of a consumer warpgroup, which scales O, rounds it, and stores it.
#pragma once

#include "hopper/forward_products.cuh"
#include "hopper/rows.cuh"

namespace gdpa::hopper {

/// Stores O through shared memory or from registers.
template <class Config>
struct ForwardEpilogue : ForwardProducts<Config> {
  using Base = ForwardProducts<Config>;
  using Base::arguments, Base::columns_v, Base::leads, Base::output, Base::own_barrier, Base::shared, Base::warpgroup;
  using typename Base::Activation, typename Base::Element, typename Base::Shared;

  /// The factor of O.
  __device__ __forceinline__ float output_factor(const Tile& tile) const {
    return Activation::value_factor * arguments.common.output_factor * tile.out_scale;
  }

  /// Stores O through shared memory. The tensor map cuts off rows beyond the sequence.
  __device__ __forceinline__ void store_through_query(const Tile& tile, int number) {
    const auto staging = shared.output(number, warpgroup);
    const float factor = output_factor(tile);
    const unsigned thread = thread_in_warpgroup(), lane = thread % 32;
    const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
#pragma unroll
    for (int j = 0; j < columns_v / 16; ++j) {
      unsigned matrix[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        matrix[i] = Element::pack(output[j * 8 + i * 2] * factor, output[j * 8 + i * 2 + 1] * factor);
      }
      store_matrices(staging.chunk(row, j * 2 + static_cast<int>(lane / 16)), matrix);
    }
    fence_proxy_async_shared();
    named_barrier_sync(own_barrier + warpgroup, warpgroup_threads);
    if (leads()) {
      staging.store(arguments.output.map, 0, tile.head, {tile.query.x + warpgroup * Shared::rows, tile.output_y});
      tma_store_commit();
      shared.tiles().consumer_release(number);
    }
  }

  __device__ __forceinline__ void store_from_registers(const Tile& tile, int number) {
    using Storage = typename Element::Storage;
    const Operand& operand = arguments.common.params.output;
    const int64_t first =
        offset_of(arguments.output, operand, arguments.common.params.queries, {tile.query.x, tile.output_y}, tile.head);
    const int row = warpgroup * Shared::rows;
    store_rows_from_registers<Element, Config::head_dim_v>(
        output, output_factor(tile), static_cast<Storage*>(operand.data) + first + row * operand.row_stride,
        operand.row_stride, tile.length_q - tile.first_query - row);
    named_barrier_sync(own_barrier + warpgroup, warpgroup_threads);
    if (leads()) shared.tiles().consumer_release(number);
  }
};

}  // namespace gdpa::hopper
