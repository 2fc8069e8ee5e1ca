// Backward: the main loop of the second consumer if tiles have 64 keys.
#pragma once

#include "hopper/backward_consumer.cuh"

namespace gdpa::hopper {

/// This consumer has no keys, and computes half of dQ. The first consumer computes P,
/// dS, dK, dV and the other half of dQ.
template <class Config>
struct ConsumerWithoutKeys : BackwardConsumer<Config> {
  using Base = BackwardConsumer<Config>;
  using Base::end, Base::issue_grad_query, Base::release_step, Base::shared;
  using typename Base::Shared;

  __device__ __forceinline__ void run() {
    Step now = broadcast(wait_for_step(shared, 0));
    for (int step = 0; now.is(Step::exists); ++step) {
      if (now.is(Shared::begins_item)) shared.tiles().consumer_wait(Shared::item_of(now));
      if (now.is(Step::begins)) shared.key_pipeline().consumer_wait(now.number);
      release_step(step);  // this consumer reads neither Q nor dO
      if constexpr (Config::computes_grad_query) {
        shared.ds_pipeline().consumer_wait(step);
        issue_grad_query(now.number, step);
        warpgroup_wait<0>();
      }
      end(now, step);
      now = broadcast(wait_for_step(shared, step + 1));
    }
  }
};

}  // namespace gdpa::hopper
