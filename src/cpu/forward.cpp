// The forward unit: rows of Q and sums of O stay in the cache while tiles of keys and values pass by. For each tile of
// scores S = Q K^T, P = f(S), O += P V; the scores never leave the cache.
#include "cpu/call.h"
#include "cpu/workspace.h"

namespace gdpa::cpu {
namespace {

template <class T>
class Forward {
 public:
  using Compute = ComputeType<T>;

  Forward(const Call<T>& call, const plan::CpuUnit& unit, int64_t b)
      : call_(call),
        params_(call.params),
        tiles_(call.schedule.tiles),
        unit_(unit),
        b_(b),
        length_q_(params_.queries.size(b)),
        length_k_(params_.keys.size(b)),
        queries_(plan::intersection(unit.queries, {0, length_q_})) {
    const plan::CpuBuffers& buffers = call.schedule.buffers;
    auto* base = static_cast<Compute*>(thread_workspace(buffers.total * static_cast<int64_t>(sizeof(Compute))));
    query_ = base + buffers.query;
    output_ = base + buffers.output;
    keys_transposed_ = base + buffers.keys_transposed;
    values_ = base + buffers.values;
    scores_ = base + buffers.scores;
  }

  void run() {
    pack_queries();
    clear(output_, call_.width_v, unit_.heads.size() * queries_.size(), call_.width_v);
    for_each_part(params_.mask.keys(queries_, length_q_, length_k_), tiles_.keys, plan::cpu_vector,
                  [&](Range keys) { meet(keys); });
    store_output();
  }

 private:
  int64_t row_of(int64_t head, int64_t query) const {
    return (head - unit_.heads.begin) * queries_.size() + query - queries_.begin;
  }

  /// The scale goes into the rows of Q, where it is free.
  void pack_queries() {
    for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) {
      pack_rows<T>(rows_of<const T>(params_.query, params_.queries, b_, queries_.begin, head), params_.query.row_stride,
                   queries_.size(), params_.head_dim, static_cast<Compute>(params_.scale),
                   query_ + row_of(head, queries_.begin) * call_.width_q, call_.width_q);
    }
  }

  void meet(Range keys) {
    pack_tile_transposed<T>(rows_of<const T>(params_.key, params_.keys, b_, keys.begin, unit_.key_head),
                            params_.key.row_stride, keys.size(), params_.head_dim, keys_transposed_, tiles_.keys);
    pack_tile<T>(rows_of<const T>(params_.value, params_.keys, b_, keys.begin, unit_.key_head),
                 params_.value.row_stride, keys.size(), params_.head_dim_v, Compute{1}, values_, call_.width_v);
    const Range active = plan::intersection(params_.mask.queries(keys, length_q_, length_k_), queries_);
    for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) {
      for_each_part(active, tiles_.queries, 1, [&](Range queries) { add_tile(head, queries, keys); });
    }
  }

  void add_tile(int64_t head, Range queries, Range keys) {
    const Columns columns = columns_for(params_.mask, queries, keys, length_q_, length_k_);
    if (columns.count == 0) return;
    const int64_t row = row_of(head, queries.begin);
    multiply<Compute>({query_ + row * call_.width_q, call_.width_q}, {keys_transposed_ + columns.begin, tiles_.keys},
                      {scores_, columns.count}, queries.size(), columns.count, params_.head_dim, Sum::overwrite);
    call_.evaluator.evaluate(scores_, queries.size() * columns.count, scores_);
    clear_masked(params_.mask, queries, keys, columns, length_q_, length_k_, scores_);
    round_through<T>(scores_, queries.size() * columns.count);
    multiply<Compute>({scores_, columns.count}, {values_ + columns.begin * call_.width_v, call_.width_v},
                      {output_ + row * call_.width_v, call_.width_v}, queries.size(), params_.head_dim_v, columns.count,
                      Sum::add);
  }

  void store_output() {
    const auto factor = static_cast<Compute>(params_.out_scale.of(b_, length_q_, length_k_));
    for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) {
      store_rows<T>(output_ + row_of(head, queries_.begin) * call_.width_v, call_.width_v, queries_.size(),
                    params_.head_dim_v, factor, rows_of<T>(params_.output, params_.queries, b_, queries_.begin, head),
                    params_.output.row_stride);
    }
  }

  const Call<T>& call_;
  const Params& params_;
  const plan::CpuTiles& tiles_;
  const plan::CpuUnit& unit_;
  int64_t b_;
  int64_t length_q_;
  int64_t length_k_;
  Range queries_;
  Compute* query_;
  Compute* output_;
  Compute* keys_transposed_;
  Compute* values_;
  Compute* scores_;
};

}  // namespace

template <class T>
void forward_unit(const Call<T>& call, const plan::CpuUnit& unit) {
  for (int64_t b = unit.batch.begin; b < unit.batch.end; ++b) Forward<T>(call, unit, b).run();
}

template void forward_unit(const Call<float>&, const plan::CpuUnit&);
template void forward_unit(const Call<double>&, const plan::CpuUnit&);
template void forward_unit(const Call<BFloat16>&, const plan::CpuUnit&);
template void forward_unit(const Call<Float16>&, const plan::CpuUnit&);

}  // namespace gdpa::cpu
