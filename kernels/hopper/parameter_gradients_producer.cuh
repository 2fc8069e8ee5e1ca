// Gradients of tensors: the producer thread that loads Q and dO by TMA.
#pragma once

#include "hopper/key_producer.cuh"
#include "hopper/parameter_gradients_storage.cuh"

namespace gdpa::hopper {

/// Loads Q and dO of each query tile, for each warpgroup.
template <class Config>
__device__ void load_queries_and_grad_outputs(const ParameterGradientsArguments& arguments,
                                              const ParameterGradientsStorage<Config>& shared) {
  using Shared = ParameterGradientsStorage<Config>;
  const auto load = [&](const auto& tile, int number) {
    for (int warpgroup = 0; warpgroup < Shared::warpgroups; ++warpgroup) {
      producer_acquire(shared.query_empty(warpgroup), number);
      const Barrier full = shared.query_full(warpgroup)[stage_of<Config::query_stages>(number)];
      const int row = warpgroup * Shared::rows;
      if (tile.first_query + row < tile.length_q) {
        full.arrive_and_expect(Shared::query_bytes);
        shared.query(number, warpgroup)
            .load(arguments.query.map, full.address, tile.head, Config::Layout::after(tile.query, row));
        shared.grad_output(number, warpgroup)
            .load(arguments.output.map, full.address, tile.head,
                  Config::Layout::after({tile.query.x, tile.output_y}, row));
      } else {
        full.arrive();  // the stage keeps old data; these rows have no valid score
      }
    }
  };
  for_all_loads<Config>(shared.tiles(), load, [](const auto&, int, int) {});
}

}  // namespace gdpa::hopper
