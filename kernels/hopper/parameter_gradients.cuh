// The gradients of the tensors that the function reads, on Hopper's tensor cores (WGMMA), with operands loaded by TMA.
//
// dP is the gradient of P, so the gradient of an input of the function at one score is dP * df/dinput. The gradient of
// an element of a tensor is the sum over all scores that read the element. The kernel computes S = Q K^T and
// dP = dO V^T once more. It is persistent, with one CTA on each multiprocessor, and shares its query tiles, its queue
// and its tile scheduler with forward:
//
//     tile scheduler    1 warp             finds the CTA's query tiles and puts them into a queue (tile_scheduler.cuh)
//     producer threads  3, in 3 warps      TMA loads: Q and dO of each tile; K, and V, of its key tiles into `stages`
//     consumers         2 warpgroups or 1  64 queries each: S and dP in registers, then the terms of each score
//
// A consumer issues S and dP of the next key tile, which may be the first of the next query tile, before it computes
// the terms of this one. All operands of the products are in shared memory, so that registers hold S and dP twice.
// common/parameter_terms.cuh has the sums of a warp and of a thread in shared memory. Registers and these sums are
// added to the sums in global memory at the end of a query tile.
//
// Config: struct with
//     using Element, Gradients;       BFloat16 or Float16; src/codegen/gradients.h
//     using Mask, Layout, Epilogue;   window_mask.cuh, packed_layout.cuh, epilogues.cuh
//     int head_dim, head_dim_v;       multiples of 8, at most 256
//     int tile_queries, tile_keys;    128 or 64; 64 or 32
//     int stages, query_stages;       stages of K, and of V; of Q and dO
//     int sum_elements;               elements for which each consumer thread has a sum of its own
//
// Launch: grid any number of CTAs, best one for each multiprocessor. params.grad_parameters are the
//         sums, cleared before.
#pragma once

#include "hopper/parameter_gradients_consumer.cuh"
#include "hopper/query_major_producer.cuh"

namespace gdpa::hopper {

template <class Config>
__device__ void parameter_gradients(const ParameterGradientsArguments& arguments) {
  using Shared = ParameterGradientsStorage<Config>;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Shared shared{shared_memory};
  if (threadIdx.x == 0) shared.initialise();
  find_tile_range<Config, Shared::threads>(arguments, shared.totals_of_warps(), shared.tile_range());
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup == Shared::warpgroups) {
    warpgroup_reg_dealloc<Shared::producer_registers>();
    const auto without_keys = [](const Work&, int) {};  // the sums of these tiles are 0
    const auto load_grad_output = [&](const auto& tile, int number, int of_warpgroup, int row, unsigned barrier) {
      shared.grad_output(number, of_warpgroup)
          .load(arguments.output.map, barrier, tile.head, Config::Layout::after({tile.query.x, tile.output_y}, row));
    };
    run_producer_warpgroup(
        [&] { schedule_tiles<Config>(arguments, shared.tile_range(), shared.tiles(), without_keys); },
        [&] { load_queries<Config>(arguments, shared, Shared::query_bytes, load_grad_output); },
        [&] { load_keys<Config>(arguments, shared); }, [&] { load_values<Config>(arguments, shared); });
  } else {
    warpgroup_reg_alloc<Shared::consumer_registers>();
    ParameterGradientsConsumer<Config>{arguments, shared, warpgroup}.run();
  }
}

}  // namespace gdpa::hopper
