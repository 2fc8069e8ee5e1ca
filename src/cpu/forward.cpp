// The forward unit. Rows of Q and the accumulators of O stay in the cache during a loop over tiles of keys and values.
// Each tile of scores is computed by S = Q K^T, P = f(S), O += P V, and never leaves the cache.
#include <span>

#include "cpu/call.h"
#include "cpu/workspace.h"

namespace gdpa::cpu {
namespace {

template <class T>
class Forward {
 public:
  using Compute = ComputeType<T>;

  Forward(const Call<T>& call, const plan::CpuUnit& unit)
      : call_(call),
        params_(call.params),
        tiles_(call.schedule.tiles),
        unit_(unit),
        mask_(call.mask, call.params),
        inputs_(call.inputs, call.params, call.params.parameters,
                [this](int64_t query, int64_t key) { return mask_.keeps(query, key); }) {
    const plan::CpuBuffers& buffers = call.schedule.buffers;
    auto* base = static_cast<Compute*>(thread_workspace(buffers.total * static_cast<int64_t>(sizeof(Compute))));
    query_ = base + buffers.query;
    output_ = base + buffers.output;
    product_ = base + buffers.product;
    keys_transposed_ = base + buffers.keys_transposed;
    values_ = base + buffers.values;
    scores_ = base + buffers.scores;
  }

  void run() {
    for (b_ = unit_.batch.begin; b_ < unit_.batch.end; ++b_) {
      length_q_ = params_.queries.size(b_);
      length_k_ = params_.keys.size(b_);
      mask_.enter(b_);
      const int64_t rows = std::max(tiles_.queries, tiles_.block_queries / unit_.heads.size());
      for_each_part(plan::intersection(unit_.queries, {0, length_q_}), rows, 1, [&](Range block) { run_block(block); });
    }
  }

 private:
  void run_block(Range queries) {
    queries_ = queries;
    pack_queries();
    clear(output_, call_.width_v, unit_.heads.size() * queries_.size(), call_.width_v);
    for_each_part(mask_.keys(queries_), tiles_.keys, plan::cpu_vector, [&](Range keys) { add_keys(keys); });
    store_output();
  }

  int64_t row_of(int64_t head, int64_t query) const {
    return (head - unit_.heads.begin) * queries_.size() + query - queries_.begin;
  }

  /// Multiplies the rows of Q by the scale, because packing makes this multiplication free.
  void pack_queries() {
    for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) {
      pack_rows<T>(rows_of<const T>(params_.query, params_.queries, b_, queries_.begin, head), params_.query.row_stride,
                   queries_.size(), params_.head_dim, static_cast<Compute>(params_.scale),
                   query_ + row_of(head, queries_.begin) * call_.width_q, call_.width_q);
    }
  }

  /// Adds the products with one tile of keys and values to O.
  void add_keys(Range keys) {
    has_keys_ = false;
    const Range active = plan::intersection(mask_.queries(keys), queries_);
    for_each_part(active, tiles_.queries, 1, [&](Range queries) {
      for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) add_tile(head, queries, keys);
    });
  }

  /// Packs the tile of keys and values, unless it is packed.
  void pack_keys(Range keys) {
    if (has_keys_) return;
    has_keys_ = true;
    for_each_run(params_.keys, keys, [&](Range run) {
      const int64_t first = run.begin - keys.begin;
      pack_transposed<T>(rows_of<const T>(params_.key, params_.keys, b_, run.begin, unit_.key_head),
                         params_.key.row_stride, run.size(), params_.head_dim, Compute{1}, keys_transposed_ + first,
                         tiles_.keys);
      pack_rows<T>(rows_of<const T>(params_.value, params_.keys, b_, run.begin, unit_.key_head),
                   params_.value.row_stride, run.size(), params_.head_dim_v, Compute{1},
                   values_ + first * call_.width_v, call_.width_v);
    });
    pad_tile_transposed(keys_transposed_, tiles_.keys, keys.size(), params_.head_dim);
    pad_tile(values_, call_.width_v, keys.size(), params_.head_dim_v);
  }

  void add_tile(int64_t head, Range queries, Range keys) {
    const Columns columns = mask_.enter_tile(head, queries, keys);
    if (columns.count == 0) return;
    pack_keys(keys);
    const int64_t row = row_of(head, queries.begin);
    multiply<Compute>({query_ + row * call_.width_q, call_.width_q}, {keys_transposed_ + columns.begin, tiles_.keys},
                      {scores_, columns.count}, queries.size(), columns.count, params_.head_dim, Sum::overwrite);
    inputs_.fill(score_tile_of(b_, head, queries, keys, columns));
    call_.evaluator_of(head).evaluate(scores_, queries.size() * columns.count, std::span<Compute* const>(&scores_, 1),
                                      inputs_.arrays());
    mask_.clear_masked(scores_);
    round_through<T>(scores_, queries.size() * columns.count);
    const bool is_long_sum = mask_.keys(queries).size() > terms_of_sum;
    add_product<Compute>({scores_, columns.count}, {values_ + columns.begin * call_.width_v, call_.width_v},
                         {output_ + row * call_.width_v, call_.width_v}, queries.size(), params_.head_dim_v,
                         columns.count, is_long_sum ? product_ : nullptr);
  }

  void store_output() {
    const auto factor = static_cast<Compute>(params_.out_scale.of(b_, length_q_, length_k_));
    const Operand* const added = call_.added;
    for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) {
      Compute* const sums = output_ + row_of(head, queries_.begin) * call_.width_v;
      scale_rows(params_, b_, queries_, sums, call_.width_v, params_.head_dim_v);
      if (added != nullptr) {
        std::transform(sums, sums + queries_.size() * call_.width_v, sums,
                       [factor](Compute sum) { return sum * factor; });
        // Q of this head is not needed any more.
        add_source<T>(rows_of<const T>(*added, params_.queries, b_, queries_.begin, head), added->row_stride,
                      queries_.size(), params_.head_dim, sums, call_.width_v,
                      query_ + row_of(head, queries_.begin) * call_.width_q);
      }
      store_rows<T>(sums, call_.width_v, queries_.size(), params_.head_dim_v, added ? Compute{1} : factor,
                    rows_of<T>(params_.output, params_.output_side(), b_, queries_.begin, head),
                    params_.output.row_stride);
    }
  }

  const Call<T>& call_;
  const Params& params_;
  const plan::CpuTiles& tiles_;
  const plan::CpuUnit& unit_;
  TileMask<Compute> mask_;
  TileInputs<Compute> inputs_;
  bool has_keys_ = false;  // the tile of keys is packed
  int64_t b_ = 0;
  int64_t length_q_ = 0;
  int64_t length_k_ = 0;
  Range queries_;
  Compute* query_;
  Compute* output_;
  Compute* product_;
  Compute* keys_transposed_;
  Compute* values_;
  Compute* scores_;
};

}  // namespace

template <class T>
void forward_unit(const Call<T>& call, const plan::CpuUnit& unit) {
  Forward<T>(call, unit).run();
}

template void forward_unit(const Call<float>&, const plan::CpuUnit&);
template void forward_unit(const Call<double>&, const plan::CpuUnit&);
template void forward_unit(const Call<BFloat16>&, const plan::CpuUnit&);
template void forward_unit(const Call<Float16>&, const plan::CpuUnit&);

}  // namespace gdpa::cpu
