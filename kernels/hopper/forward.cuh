// Forward on Hopper's tensor cores (WGMMA), fed by its copy engine (TMA): O = out_scale * f(scale * Q K^T) V.
//
// One CTA on each multiprocessor stays there and takes tiles of queries. Three kinds of warps work side by side:
//
//     dealer    1 warp          finds tiles and lays them into a ring (schedule.cuh)
//     loaders   3 warps         Q of each tile; K, and V, of its key tiles into `stages` buffers each
//     computing 2 warpgroups    64 queries each: S = Q K^T, P = f(scale * S), O += P V; one, where there are no more
//
// A warpgroup issues S of the next key tile, which may be the next query tile's first, before P V of this one, and
// computes P of the next while the tensor cores are at P V of this one: nothing is drained between tiles. The two
// warpgroups take turns in issuing, so that one's products run under the other's function. P is an operand in
// registers. There is no maximum and no sum, so nothing else is carried from one key tile to the next.
//
// Q is an operand in registers too where there is room for it; O then leaves through its place in shared memory. Where
// there is none, Q stays in shared memory until the last S of its tile, and O leaves from the registers.
//
// Config: struct with
//     using Element, Activation;      BFloat16 or Float16; what forward takes of src/activation/function.h
//     int head_dim, head_dim_v;       multiples of 8, at most 256
//     int tile_queries, tile_keys;    128 or 64; a multiple of 16 for which wgmma.cuh has a product
//     int stages, query_stages;       buffers of K, and of V; of Q
//     bool query_in_registers;
//     bool scales_query;              the kernel multiplies Q by scale, instead of each score; Q must be in registers
//
// Launch: grid any number of CTAs, best one for each multiprocessor; block forward_threads<Config>; dynamic shared
//         memory forward_shared_bytes<Config>; no workspace.
#pragma once

#include "hopper/forward_consumer.cuh"
#include "hopper/forward_producer.cuh"

namespace gdpa::hopper {

template <class Config>
__device__ void forward(const ForwardArguments& arguments) {
  using Plan = ForwardPlan<Config>;
  constexpr bool may_begin_again = Config::Activation::bounds_scores;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Plan plan{shared_memory};
  if (threadIdx.x == 0) {
    plan.initialise_meeting();
    plan.initialise();
  }
  find_share<Config, Plan::threads>(arguments, plan.sums_of_warps(), plan.span());
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup == Plan::warpgroups) {
    give_registers_back<Plan::other_registers>();
#pragma unroll 1
    do {
      deal_and_copy([&] { deal_tiles<Config>(arguments, plan.span(), plan.tiles()); },
                    [&] { load_queries<Config>(arguments, plan); }, [&] { load_keys<Config>(arguments, plan); },
                    [&] { load_values<Config>(arguments, plan); });
    } while (may_begin_again && plan.begins_again());
  } else {
    take_registers<Plan::computing_registers>();
    ForwardConsumer<Config, Scores::taken_for_finite>{arguments, plan, warpgroup}.run();
    if constexpr (may_begin_again) {
      if (plan.begins_again()) ForwardConsumer<Config, Scores::bounded>{arguments, plan, warpgroup}.run();
    }
  }
}

}  // namespace gdpa::hopper
