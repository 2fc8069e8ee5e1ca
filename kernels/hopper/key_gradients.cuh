// The destination of dK and dV of a key tile: the gradients, or, with broadcast K/V, fp32 partial results, one for each
// split of the batch. A later kernel adds the partial results in order (portable/reduce.cuh).
#pragma once

#include "common/work.cuh"
#include "hopper/arguments.cuh"

namespace gdpa::hopper {

template <class Config, bool keys_shared = Config::keys_shared>
struct KeyGradients {
  using Element = typename Config::Element;
  static constexpr int columns = Config::head_dim, columns_v = Config::head_dim_v;

  static __device__ const Operand& of_key(const BackwardArguments& arguments) {
    return arguments.common.params.grad_key;
  }
  static __device__ const Operand& of_value(const BackwardArguments& arguments) {
    return arguments.common.params.grad_value;
  }
};

template <class Config>
struct KeyGradients<Config, true> {
  using Element = Float32;
  static constexpr int columns = padded_columns(Config::head_dim), columns_v = padded_columns(Config::head_dim_v);

  static __device__ const Operand& of_key(const BackwardArguments& arguments) {
    return arguments.common.grad_key_accumulator;
  }
  static __device__ const Operand& of_value(const BackwardArguments& arguments) {
    return arguments.common.grad_value_accumulator;
  }
};

/// The queries that attend to the keys of `work`: the queries of its batch entry, or none if several entries have these
/// keys. With broadcast K/V, a split of all queries as one sequence. Splits have equal lengths for any entries.
template <class Config>
__device__ Rows queries_that_meet(const BackwardArguments& arguments, const Work& work) {
  if (!Config::keys_shared) return work.queries;
  using Layout = typename Config::Layout;
  const CommonArguments& common = arguments.common;
  const Sequences& side = common.params.queries;
  const int64_t begin = Layout::rows_before(side, 0, common.packed_rows_q);
  const int64_t end = Layout::rows_before(side, common.params.batch, common.packed_rows_q);
  const int64_t rows = clamp(end - begin, 0, common.packed_rows_q);
  const auto first_of = [&](int64_t part) {
    return part < common.splits ? rows * part / common.splits / Config::tile_queries * Config::tile_queries : rows;
  };
  const int64_t first = first_of(work.entry);
  return {begin + first, static_cast<int>(clamp(first_of(work.entry + 1) - first, 0, most_gpu_rows))};
}

}  // namespace gdpa::hopper
