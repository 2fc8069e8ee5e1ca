// Backward for head dims above 128: the roles of the threads, the layout of shared memory, and its barriers.
#pragma once

#include "hopper/grad_query_accumulators.cuh"
#include "hopper/key_major.cuh"

namespace gdpa::hopper {

enum class Role : int { value, key };

/// The bytes of f' of a tile, in fp32.
template <class Config>
constexpr int derivative_bytes = Config::tile_keys* Config::tile_queries* static_cast<int>(sizeof(float));

/// K has one stage. dS has two, because the dV consumer uses it later.
template <class Config>
struct WideBackwardStorage : KeyMajorStorage<Config, 1, derivative_bytes<Config>> {
  using Base = KeyMajorStorage<Config, 1, derivative_bytes<Config>>;
  using Base::rows, Base::warpgroups;
  static constexpr int load_threads = 3;
  static constexpr int working_consumers = Base::computes_ds ? 2 : 1;
  static_assert(Config::tile_keys == rows && Config::tile_queries == rows, "as many as a product has");
  static_assert(!Config::keys_shared && !Config::ordered, "the portable kernels have these");
  static_assert(!Config::has_dq_semaphores, "accumulators are cleared before, and rounded afterwards");
  static constexpr int shared_bytes = Base::end;
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  /// The named barrier of both consumers: f' of a query tile is in shared memory.
  static constexpr int derivatives_written = 1;
  static constexpr int consumer_threads = warpgroups * warpgroup_threads;

  /// Four numbers of f' of a thread. The thread of the same index in the other consumer has the same elements.
  __device__ unsigned derivatives(int piece) const {
    return Base::at(Base::own_at) + (static_cast<unsigned>(piece) * warpgroup_threads + thread_in_warpgroup()) * 16;
  }

  __device__ void initialise() const {
    this->query_pipeline().initialise(1, working_consumers);
    this->grad_output_pipeline().initialise(1, working_consumers);
    this->next_key_tile_due().initialise(2);  // the producer threads of Q and of dO
    this->key_pipeline().initialise(1, working_consumers);
    this->value_pipeline().initialise(1, 1);
    // Also orders the reads of f': each thread arrives, because racecheck sees no other order between them.
    this->ds_pipeline().initialise(warpgroup_threads, warpgroups);
    this->tiles().initialise(key_tile_words<typename Config::Mask>, consumer_threads + load_threads);
    fence_barrier_init();
  }
};

template <class Config>
using wide_backward_cta = WideBackwardStorage<Config>;

}  // namespace gdpa::hopper
