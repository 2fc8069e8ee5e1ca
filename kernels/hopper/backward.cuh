// Backward on Hopper's tensor cores (WGMMA), fed by its copy engine (TMA): dK and dV, and dQ by reduction.
//
// One CTA on each multiprocessor stays there and takes tiles of 128 keys, past which the queries stream in tiles of 64,
// or of 128 where dK and dV leave registers for their scores. Three kinds of warps work side by side:
//
//     dealer    1 warp          takes tiles of keys and lays them into a ring (key_schedule.cuh)
//     loader    1 warp          K and V of each tile, Q and dO of its tiles of queries; `stages` buffers of Q and of dO
//     sender    1 warp          takes dQ of each tile of queries away (grad_query_sums.cuh), dK and dV of each of keys
//     keeper    1 warp          of turns, for the sender (turns.cuh)
//     computing 2 warpgroups    64 keys each: S^T = K Q^T and dP^T = V dO^T, then P = f(scale * S) and
//                               dS = dP * f'(scale * S), dV += P^T dO and dK += dS^T Q, whose sums stay in registers
//
// dQ = dS K needs the keys of both warpgroups: dS goes through shared memory, and each warpgroup multiplies for one
// half of the columns, or of 128 queries, a tile of queries later, when the other's dS has long been there.
//
// For a tile of queries n, a warpgroup issues dV (n), makes dS (n), issues dK (n) and dQ (n - 1), then S and dP of
// n + 1, which may belong to the next tile of keys: nothing is drained between them. It computes P and f' of n + 1
// while the other warpgroup, whose turn it is then, issues its products. Of 128 queries it does so in two parts, and
// makes dS there too: P, f' and dP of all of them are more than there are registers. Before the first tile and behind
// the last one dQ and S are multiplied of whatever lies in the buffers, and dropped: a product under a condition would
// make all of them wait for each other. A tile of keys with one tile of queries is the last before a new beginning,
// since K of the next but one has no buffer before its dQ is there.
//
// Config: struct with
//     using Element, Activation;      BFloat16 or Float16; what backward takes of src/activation/function.h
//     int head_dim, head_dim_v;       multiples of 8, at most 128
//     int tile_queries, tile_keys;    64, or 128 with head dims up to 64; 128
//     int stages;                     buffers of Q, and of dO
//     bool keys_shared;               by the batch, whose parts are then taken for sequences
//     bool sums_begun, ordered;       by turns, and these in one order: how tiles of keys add to sums of dQ (turns.cuh)
//     BackwardPass pass;              whether there are two, and which this is
//     bool computes_grad_query, computes_grad_key, computes_grad_value;
//         which gradients the call wants. Products, copies and accumulators that only the others need are left out:
//         without dQ dS stays in registers, and for dV alone there is no dP and V is not loaded.
//
// Launch: grid any number of CTAs, best one for each multiprocessor; block backward_threads<Config>; dynamic shared
//         memory backward_shared_bytes<Config>; after key_schedule. Workspace: the counter of places, zeroed before;
//         the table of tiles; the sums of dQ.
#pragma once

#include "hopper/backward_consumer.cuh"
#include "hopper/backward_producer.cuh"
#include "hopper/backward_stores.cuh"

namespace gdpa::hopper {

template <class Config>
__device__ void backward(const BackwardArguments& arguments) {
  using Plan = BackwardPlan<Config>;
  if (Config::pass == BackwardPass::again && *arguments.found == 0) return;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Plan plan{shared_memory};
  if (threadIdx.x == 0) plan.initialise();
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup == Plan::warpgroups) {
    give_registers_back<Plan::other_registers>();
    deal_and_copy([&] { deal_key_tiles(arguments, plan.tiles(), plan.next_is_due()); },
                  [&] { load_operands<Config>(arguments, plan); }, [&] { send_gradients<Config>(arguments, plan); },
                  [&] {
                    if constexpr (Config::sums_begun) keep_turns<Config>(arguments, plan.tiles(), plan.turns());
                  });
  } else {
    take_registers<Plan::computing_registers>();
    BackwardConsumer<Config>{arguments, plan, warpgroup}.run();
  }
}

}  // namespace gdpa::hopper
