// fp32 sums of dQ, for batch entries whose keys are several CTAs': cleared before backward, rounded behind it. Those of
// other entries are not touched (is_direct).
//
// They lie as backward's copies add them: (heads, two halves of the columns, rows), in groups of 16 columns, whose inner
// order is that of the lanes (column_of); in rows of odd index each two neighbouring groups are exchanged.
#pragma once

#include "common/tile.cuh"
#include "hopper/arguments.cuh"
#include "portable/work.cuh"

namespace gdpa::hopper {

/// Calls visit(work, first row, rows) for every tile of queries whose dQ is summed, of all heads together, among them
/// rows that no sequence has; by a warp of each `warps` of a CTA. Rows are counted over the batch.
template <class Config, unsigned warps, class Visit>
__device__ void for_all_summed_rows(const BackwardArguments& arguments, Visit visit) {
  const Params& params = arguments.common.params;
  const portable::Owner owner{params.queries, arguments.common.packed_rows_q, 1, Config::tile_queries, params.batch};
  const auto places = static_cast<unsigned>(owner.places());
  for (unsigned place = blockIdx.x * warps + threadIdx.x / 32; place < places; place += gridDim.x * warps) {
    const portable::Work work = portable::find_work(arguments.common, owner, true, place);
    if (!work.exists || is_direct(params.mask, work.keys.count)) continue;
    const int first = work.tile * Config::tile_queries;
    const int64_t row =
        first + (owner.jagged() ? work.queries.begin : work.batch_begin * params.queries.length);
    visit(work, row, min(Config::tile_queries, work.queries.count - first));
  }
}

/// The sums of a head's rows from `row` on, in one half of the columns.
template <class Config>
__device__ float* sums_at(const BackwardArguments& arguments, int64_t head, int half, int64_t row) {
  constexpr int columns = half_columns(Config::head_dim);
  return arguments.grad_query_sums + ((head * 2 + half) * arguments.common.packed_rows_q + row) * columns;
}

/// By a warp.
template <class Config>
__device__ void clear_sums(const BackwardArguments& arguments, int64_t row, int rows) {
  const int chunks = rows * half_columns(Config::head_dim) / 4;
  for (int64_t head = 0; head < arguments.common.params.heads_q; ++head) {
    for (int half = 0; half < 2; ++half) {
      auto* const to = reinterpret_cast<float4*>(sums_at<Config>(arguments, head, half, row));
      for (int i = static_cast<int>(threadIdx.x % 32); i < chunks; i += 32) to[i] = {};
    }
  }
}

template <class Config>
constexpr int round_grad_query_threads = 256;
template <class Config>
constexpr int round_grad_query_shared_bytes = 0;

/// A kernel of its own: multiplies the sums by scale, and by out_scale where it is one number, and writes dQ.
///
/// Launch: grid any number of CTAs, best tiles of queries / 8; block round_grad_query_threads<Config>; no shared memory.
template <class Config>
__device__ void round_grad_query(const BackwardArguments& arguments) {
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  constexpr int groups = padded_columns(Config::head_dim) / column_group;
  constexpr int groups_of_half = half_columns(Config::head_dim) / column_group;
  constexpr unsigned warps = round_grad_query_threads<Config> / 32;
  const Params& params = arguments.common.params;
  const bool is_number = params.out_scale.kind == OutputScale::Kind::number;
  const auto factor = static_cast<float>(params.scale * (is_number ? params.out_scale.number : 1.0));
  for_all_summed_rows<Config, warps>(arguments, [&](const portable::Work& work, int64_t first_row, int rows) {
    auto* const gradient =
        static_cast<Storage*>(params.grad_query.data) +
        element_offset(params.grad_query, work.queries, work.batch_begin, work.tile * Config::tile_queries, 0);
    const int pieces = rows * groups;
    for (int64_t head = 0; head < params.heads_q; ++head) {
      for (int piece = static_cast<int>(threadIdx.x % 32); piece < pieces; piece += 32) {
        const int row = piece / groups, group = piece % groups;
        const int place = group ^ (static_cast<int>(first_row + row) & 1);
        const float* const from = sums_at<Config>(arguments, head, place / groups_of_half, first_row + row) +
                                  place % groups_of_half * column_group;
        float values[column_group];
#pragma unroll
        for (int i = 0; i < column_group; i += 4) {
          const float4 four = *reinterpret_cast<const float4*>(from + i);
          values[column_of(i)] = four.x * factor;
          values[column_of(i + 1)] = four.y * factor;
          values[column_of(i + 2)] = four.z * factor;
          values[column_of(i + 3)] = four.w * factor;
        }
        Storage* const to = gradient + row * params.grad_query.row_stride + head * params.grad_query.head_stride +
                            group * column_group;
#pragma unroll
        for (int i = 0; i < column_group; i += 8) {
          if (group * column_group + i < Config::head_dim) {
            *reinterpret_cast<uint4*>(to + i) = round_chunk<Element>(values + i);
          }
        }
      }
    }
  });
}

}  // namespace gdpa::hopper
