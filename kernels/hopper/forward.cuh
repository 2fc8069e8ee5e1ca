// Forward on Hopper's tensor cores (WGMMA), with operands loaded by TMA: O = out_scale * f(scale * Q K^T) V.
//
// The kernel is persistent: one CTA on each multiprocessor computes one query tile after the other. Its warps have
// three roles:
//
//     tile scheduler    1 warp             finds the CTA's query tiles and puts them into a queue (tile_scheduler.cuh)
//     producer threads  3, in 3 warps      TMA loads: Q of each tile; K, and V, of its key tiles into `stages` stages
//     consumers         2 warpgroups or 1  64 queries each: S = Q K^T, P = f(scale * S), O += P V
//
// A consumer issues S of the next key tile, which may be the first of the next query tile, before P V of this one. It
// computes P of the next key tile while the tensor cores compute P V of this one. The pipeline is never drained between
// tiles. The two consumers issue in ping-pong order, so that the products of one run while the other evaluates f. P is
// an operand in registers. f needs no maximum and no sum of a row, so a consumer carries only O from one key tile to
// the next. A consumer stores O of a query tile while the tensor cores compute the second S of the next query tile.
//
// Q is an operand in registers where registers suffice. O then leaves through the shared memory of the next Q.
// Otherwise Q stays in shared memory until the last S of its tile, and O is stored from registers.
//
// Config: struct with
//     using Element, Activation;      BFloat16 or Float16; the part for forward of src/codegen/function.h
//     int head_dim, head_dim_v;       multiples of 8, at most 256
//     int tile_queries, tile_keys;    128 or 64; a multiple of 16 for which wgmma.cuh has a product
//     int stages, query_stages;       stages of K, and of V; of Q
//     bool query_in_registers;
//     BiasTile bias_tile;             of a dense bias of Inputs in shared memory (common/staged_tile.cuh)
//     bool stages_lookups;            Inputs has lookups, which are staged in shared memory (common/staged_lookups.cuh)
//     Pass pass;                      whether the call has two passes, and which one this is (arguments.cuh)
//
// Launch: grid any number of CTAs, best one for each multiprocessor; block forward_threads<Config>; dynamic shared
//         memory forward_shared_bytes<Config>. With the dynamic tile order, the counter and found_nan are zero.
#pragma once

#include "hopper/forward_consumer.cuh"
#include "hopper/query_major_producer.cuh"
#include "pipeline/dependent_launch.cuh"

namespace gdpa::hopper {

template <class Config>
__device__ __forceinline__ void forward(const ForwardArguments& arguments) {
  using Shared = ForwardStorage<Config>;
  if (Config::pass == Pass::first) allow_next_kernel();
  if (Config::pass == Pass::second && *found_nan_of_cta(arguments) == 0) return;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Shared shared{shared_memory};
  if (threadIdx.x == 0) {
    if (Config::pass == Pass::first && arguments.tiles.order != TileOrder::dynamic) *found_nan_of_cta(arguments) = 0;
    shared.initialise();
  }
  find_tile_range<Config, Shared::threads>(arguments, shared.totals_of_warps(), shared.tile_range());
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup == Shared::warpgroups) {
    warpgroup_reg_dealloc<Shared::producer_registers>();
    run_producer_warpgroup(
        [&] {
          schedule_tiles<Config>(arguments, shared.tile_range(), shared.tiles(), [&](const Work& work, int lane) {
            write_without_keys<Config>(arguments.common.params, work, lane);
          });
        },
        [&] { load_queries<Config>(arguments, shared, Shared::QueryTile::bytes, [](const auto&, auto...) {}); },
        [&] { load_keys<Config>(arguments, shared); }, [&] { load_values<Config>(arguments, shared); });
  } else {
    warpgroup_reg_alloc<Shared::consumer_registers>();
    ForwardConsumer<Config>{arguments, shared, warpgroup}.run();
  }
}

}  // namespace gdpa::hopper
