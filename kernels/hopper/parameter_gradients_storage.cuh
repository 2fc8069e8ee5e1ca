// Gradients of tensors: the layout of shared memory.
#pragma once

#include "common/parameter_terms.cuh"
#include "hopper/query_major_storage.cuh"

namespace gdpa::hopper {

/// The stage of Q and dO of a warpgroup.
template <class Config>
constexpr int query_and_grad_output_bytes =
    SwizzledTile<warpgroup_rows, Config::head_dim>::bytes + SwizzledTile<warpgroup_rows, Config::head_dim_v>::bytes;

/// Each stage of the queries has Q, then dO. After the queue come the sums of each warp and of each consumer thread.
template <class Config>
struct ParameterGradientsStorage : QueryMajorStorage<Config, query_and_grad_output_bytes<Config>> {
  using Base = QueryMajorStorage<Config, query_and_grad_output_bytes<Config>>;
  using Base::memory, Base::query, Base::warpgroups;
  using GradOutputTile = SwizzledTile<Base::rows, Config::head_dim_v>;
  static constexpr int consumer_threads = warpgroups * warpgroup_threads;
  using Terms = WarpTerms<Config::tile_keys>;
  using Sums = ThreadSums<consumer_threads>;
  static_assert(Config::Gradients::sum_threads == 0 || Config::Gradients::sum_threads == consumer_threads,
                "each consumer thread has sums");

  static constexpr int terms_at = (Base::end + 15) / 16 * 16;
  static constexpr int sums_at = terms_at + consumer_threads / 32 * Terms::bytes;
  static constexpr int sums_bytes = Config::sum_elements * Sums::bytes_of_element;
  static constexpr int shared_bytes = sums_at + sums_bytes;
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  __device__ GradOutputTile grad_output(int number, int warpgroup) const {
    return {query(number, warpgroup).base + static_cast<unsigned>(Base::QueryTile::bytes)};
  }
  /// The sums of a consumer warp.
  __device__ Terms terms(int warp) const {
    return {reinterpret_cast<float*>(memory + terms_at) + warp * Terms::floats};
  }
  __device__ Sums sums() const { return {reinterpret_cast<float*>(memory + sums_at)}; }
};

template <class Config>
using parameter_gradients_cta = ParameterGradientsStorage<Config>;

}  // namespace gdpa::hopper
