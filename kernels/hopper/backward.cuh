// Backward on Hopper's tensor cores (WGMMA), with operands loaded by TMA: dK, dV and dQ for head dims up to 128.
//
// The kernel is persistent: one CTA on each multiprocessor computes one tile of 128 keys after the other. Queries
// stream past in tiles of 64, or of 128 if dK and dV leave registers for their scores. The warps of a CTA have these
// roles:
//
//     tile scheduler    1 warp          takes key tiles and puts them into a queue (key_major.cuh)
//     producer thread   1, in 1 warp    TMA loads: K and V of each key tile, Q and dO of its query tiles into `stages`
//                                       stages each
//     store thread      1, in 1 warp    TMA stores: dQ of each query tile (grad_query_accumulators.cuh), dK and dV of
//                                       each key tile
//     semaphore thread  1, in 1 warp    dQ semaphores, for the store thread (dq_semaphore.cuh)
//     consumers         2 warpgroups    64 keys each: S^T = K Q^T and dP^T = V dO^T, then P = f(scale * S) and
//                                       dS = dP * f'(scale * S), dV += P^T dO and dK += dS^T Q, accumulated in
//                                       registers
//
// dQ = dS K needs the keys of both consumers. dS therefore goes through shared memory. Each consumer computes half of
// the columns of dQ, or half of 128 queries, one query tile later, when dS of the other has been there for long.
//
// For query tile n, a consumer issues dV (n), computes dS (n), issues dK (n) and dQ (n - 1), then S and dP of n + 1,
// which may belong to the next key tile: the pipeline is not drained between key tiles. It computes P and f' of n + 1
// while the other consumer issues its products, in ping-pong order. With 128 queries it does so in two parts and
// computes dS there too, because P, f' and dP of all of them exceed the registers. Before the first tile and after the
// last one, dQ and S are products of old data in shared memory and are dropped: a product under a condition would
// serialise all WGMMA. A key tile with one query tile drains the pipeline, since K of the tile after the next one has
// no stage before its dQ is done.
//
// If the host knows that no sequence has more than 64 keys, a tile has 64 keys, and more stages of Q and dO fit. The
// first consumer has these keys, without a ping-pong order. The second consumer computes only its half of dQ
// (consumer_without_keys.cuh).
//
// With a batch map, the query tiles of several batch entries attend to a key tile. K, V, dK and dV stay where they are
// from one entry to the next.
//
// Config: struct with
//     using Element, Activation;      BFloat16 or Float16; the part for backward of src/codegen/function.h
//     using Gradients;                of the tensors that the function reads (backward_gradients.cuh)
//     bool has_lookups;               tiles have LaneLookups (common/lane_lookups.cuh)
//     int head_dim, head_dim_v;       multiples of 8, at most 128
//     int tile_queries, tile_keys;    64, or 128 with head dims up to 64; 128, or 64
//     int stages;                     stages of Q, and of dO
//     bool keys_shared;               broadcast K/V; splits of the batch then take the role of sequences
//     bool has_dq_semaphores, ordered;  dQ has semaphores (dq_semaphore.cuh); all writers add in order
//     bool scales_entries;            out_scale multiplies P and dS, because the entries of a key tile differ in it
//     Pass pass;                      whether the call has two passes, and which one this is
//     bool computes_grad_query, computes_grad_key, computes_grad_value;
//         which gradients the call wants. Products, copies and accumulators that only other gradients need are left
//         out: without dQ, dS stays in registers; for dV alone, dP is not computed, and V is not loaded.
//
// Launch: grid any number of CTAs, best one for each multiprocessor; after key_schedule. Workspace:
//         the counter of slots, zeroed before; the table of key tiles; the accumulators of dQ.
#pragma once

#include "hopper/consumer_without_keys.cuh"
#include "hopper/backward_producer.cuh"
#include "pipeline/dependent_launch.cuh"

namespace gdpa::hopper {

/// Inlined although it is long: a call would serialise all WGMMA.
template <class Config>
__device__ __forceinline__ void backward(const BackwardArguments& arguments) {
  using Shared = BackwardStorage<Config>;
  if (Config::pass == Pass::first) allow_next_kernel();
  if (Config::pass == Pass::second && *arguments.non_finite == 0) return;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Shared shared{shared_memory};
  if (threadIdx.x == 0) shared.initialise();
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (take_registers<Shared>(warpgroup)) {
    run_producer_warpgroup([&] { schedule_key_tiles<Config>(arguments, shared.tiles(), shared.next_key_tile_due()); },
                           [&] { load_operands<Config>(arguments, shared); },
                           [&] { store_gradients<Config>(arguments, shared); },
                           [&] {
                             if constexpr (Config::has_dq_semaphores)
                               update_semaphores<Config>(arguments, shared.tiles(), shared.semaphore_requests());
                           });
  } else if constexpr (Shared::key_warpgroups == Shared::warpgroups) {
    BackwardConsumer<Config>{arguments, shared, warpgroup}.run();
  } else if (warpgroup == 0) {
    BackwardConsumer<Config>{arguments, shared, 0}.run();
  } else {
    ConsumerWithoutKeys<Config>{arguments, shared, 1}.run();
  }
}

}  // namespace gdpa::hopper
