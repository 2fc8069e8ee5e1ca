// Backward on Hopper's tensor cores (WGMMA), with operands loaded by TMA, for head dims above 128. The accumulators of
// dK and of dV of 64 keys take half of the registers of a warpgroup each, so that one consumer has dV and the other dK.
//
// The kernel is persistent: one CTA on each multiprocessor computes one tile of 64 keys after the other. Queries stream
// past in tiles of 64. The warps of a CTA have these roles:
//
//     tile scheduler    1 warp           takes key tiles and puts them into a queue (key_major.cuh)
//     producer threads  3, in 3 warps    TMA loads: K and V of each key tile; Q; dO; `stages` stages of Q and of dO
//     dV consumer       1 warpgroup      S^T = K Q^T; P = f(scale * S), which stays in registers; f'(scale * S), which
//                                        goes to the dK consumer through shared memory; dV += P^T dO
//     dK consumer       1 warpgroup      dP^T = V dO^T; dS = dP * f', which stays in registers and also goes to shared
//                                        memory; dK += dS^T Q
//     both consumers                     dQ = dS K, half of the columns each, from registers to the fp32 accumulators
//                                        (grad_query_accumulators.cuh)
//
// Shared memory has no room to stage dQ. Global memory takes the additions of dQ more slowly than the tensor cores take
// all products, and a warpgroup that adds waits for it. Products are therefore issued before additions and run during
// them. dQ of a consumer comes in two chunks of columns, which use the same registers. For query tile n:
//
//     dV consumer  S (n + 1) | add the last chunk (n - 1) | first chunk of dQ (n), dV (n) | wait S, first chunk |
//                  add the first chunk | last chunk (n) | wait dV | P and f' (n + 1) | wait last chunk
//     dK consumer  dS (n) | dK (n) | add the last chunk (n - 1); in between wait dK, to release Q |
//                  first chunk of dQ (n), dP (n + 1) | wait first chunk | add the first chunk | last chunk (n) |
//                  wait dP, last chunk
//
// Config: struct as of backward.cuh, with
//     int head_dim, head_dim_v;       multiples of 8, at most 256
//     int tile_queries, tile_keys;    64, 64
//     bool keys_shared, has_dq_semaphores, ordered;  false
//
// Work that only an unwanted gradient needs is left out (computes_grad_query, computes_grad_key, computes_grad_value of
// Config). Without dQ, dS is not written to shared memory, and its barrier only says that f' has been read. For dV
// alone, the dK consumer has no work, and V is not loaded.
//
// Launch: as backward.cuh.
#pragma once

#include "hopper/wide_backward_consumers.cuh"
#include "pipeline/dependent_launch.cuh"

namespace gdpa::hopper {

/// Loads K and V of each key tile. V is first, because it is released earlier.
template <class Config>
__device__ void load_keys_and_values(const BackwardArguments& arguments, const WideBackwardStorage<Config>& shared) {
  using Shared = WideBackwardStorage<Config>;
  for_all_key_tiles(shared.tiles(), [&](const auto& tile, int number) {
    if constexpr (Shared::computes_ds) {
      shared.value_pipeline().producer_acquire(number);
      shared.values().fill(shared.value_pipeline().full_of(number), arguments.value.map, tile.key_head,
                           {tile.key.x, tile.value_y});
    }
    shared.key_pipeline().producer_acquire(number);
    shared.keys(number).fill(shared.key_pipeline().full_of(number), arguments.key.map, tile.key_head, tile.key);
  });
}

/// Loads the query tiles of Q or dO. `tile_of_step` gives the stage of a step, and `y_of` the map coordinate y of the
/// sequence of a key tile.
template <class Config, class TileOfStep, class YOf>
__device__ void load_query_tiles(const WideBackwardStorage<Config>& shared, const TensorMap& map,
                                 const Pipeline<Config::stages>& pipeline, TileOfStep tile_of_step, YOf y_of) {
  int step = 0;
  for_all_key_tiles(shared.tiles(), [&](const auto& tile, int) {
    for_all_query_tiles(tile, [&](int head, int position, int left) {
      signal_next_key_tile(shared.next_key_tile_due(), tile, left);
      pipeline.producer_acquire(step);
      const int row = tile.queries.row_offset(position, Config::tile_queries);
      tile_of_step(step).fill(pipeline.full_of(step), map, head,
                              Config::Layout::after({tile.query.x, y_of(tile)}, row));
      ++step;
    });
  });
}

template <class Config>
__device__ void wide_backward(const BackwardArguments& arguments) {
  using Shared = WideBackwardStorage<Config>;
  if (Config::pass == Pass::first) allow_next_kernel();
  if (Config::pass == Pass::second && *arguments.non_finite == 0) return;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Shared shared{shared_memory};
  if (threadIdx.x == 0) shared.initialise();
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (take_registers<Shared>(warpgroup)) {
    run_producer_warpgroup(
        [&] { schedule_key_tiles<Config>(arguments, shared.tiles(), shared.next_key_tile_due()); },
        [&] { load_keys_and_values<Config>(arguments, shared); },
        [&] {
          load_query_tiles(
              shared, arguments.query.map, shared.query_pipeline(), [&](int step) { return shared.queries(step); },
              [](const auto& tile) { return tile.query.y; });
        },
        [&] {
          load_query_tiles(
              shared, arguments.grad_output.map, shared.grad_output_pipeline(),
              [&](int step) { return shared.grad_outputs(step); }, [](const auto& tile) { return tile.grad_output_y; });
        });
  } else if (warpgroup == 0) {
    consume<GradValueConsumer<Config>>(arguments, shared);
  } else {
    consume<GradKeyConsumer<Config>>(arguments, shared);
  }
}

}  // namespace gdpa::hopper
