// Backward on Hopper's tensor cores (WGMMA), fed by its copy engine (TMA), for head dims above 128: dK and dV of 64
// keys take half of the registers of a warpgroup each, so that one warpgroup has dV and another dK.
//
// One CTA on each multiprocessor stays there and takes tiles of 64 keys, past which the queries stream in tiles of 64:
//
//     dealer     1 warp       takes tiles of keys and lays them into a ring (key_schedule.cuh)
//     loaders    3 warps      K and V of each tile; Q; dO; `stages` buffers of Q and of dO
//     value side 1 warpgroup  S^T = K Q^T, P = f(scale * S), which stays in registers, and f'(scale * S), which goes to
//                             the other side through shared memory; dV += P^T dO
//     key side   1 warpgroup  dP^T = V dO^T, dS = dP * f', which stays in registers, and goes to shared memory too;
//                             dK += dS^T Q
//     both                    dQ = dS K, half of the columns each, from registers to the sums (grad_query_sums.cuh)
//
// Shared memory has no room for dQ on its way. The memory takes its additions more slowly than the tensor cores take
// all products, and a warpgroup that adds waits for it: so products are issued before additions, to run beside them. dQ
// of a side comes in two chunks of columns, which have the same registers: for a tile of queries n
//
//     value side  S (n + 1) | add the last chunk (n - 1) | first chunk of dQ (n), dV (n) | wait S, first chunk | add it
//                 last chunk (n) | wait dV | P and f' (n + 1) | wait last chunk
//     key side    dS (n) | dK (n) | add the last chunk (n - 1); in between wait dK, to free Q | first chunk of dQ (n),
//                 dP (n + 1) | wait first chunk | add it | last chunk (n) | wait dP, last chunk
//
// Config: struct as of backward.cuh, with
//     int head_dim, head_dim_v;       multiples of 8, at most 256
//     int tile_queries, tile_keys;    64, 64
//     bool keys_shared, sums_begun, ordered;  false
//
// Work that only an unwanted gradient needs is left out (computes_grad_query, computes_grad_key, computes_grad_value of
// Config). Without dQ, dS is not written to shared memory, and its barrier only says that f' has been read. For dV
// alone the key side has no work, and V is not loaded.
//
// Launch: as backward.cuh, with wide_backward_threads<Config> and wide_backward_shared_bytes<Config>.
#pragma once

#include "hopper/wide_backward_consumers.cuh"
#include "hopper/wide_backward_producer.cuh"

namespace gdpa::hopper {

template <class Config>
__device__ void wide_backward(const BackwardArguments& arguments) {
  using Plan = WideBackwardPlan<Config>;
  if (Config::pass == BackwardPass::again && *arguments.found == 0) return;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Plan plan{shared_memory};
  if (threadIdx.x == 0) plan.initialise();
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup == Plan::sides) {
    give_registers_back<Plan::other_registers>();
    deal_and_copy([&] { deal_key_tiles(arguments, plan.tiles(), plan.next_is_due()); },
                  [&] { load_keys_and_values<Config>(arguments, plan); },
                  [&] { load_queries<Config>(arguments, plan); }, [&] { load_grad_outputs<Config>(arguments, plan); });
  } else {
    take_registers<Plan::computing_registers>();
    if (warpgroup == 0) {
      compute_side<ValueSide<Config>>(arguments, plan);
    } else {
      compute_side<KeySide<Config>>(arguments, plan);
    }
  }
}

}  // namespace gdpa::hopper
