// The forward unit. Rows of Q and the accumulators of O stay in the cache during a loop over tiles of keys and values.
// Each tile of scores is computed by S = Q K^T, P = f(S), O += P V, and never leaves the cache.
#include <span>

#include "cpu/call.h"

namespace gdpa::cpu {
namespace {

template <class T>
class Forward {
 public:
  using Compute = ComputeType<T>;

  Forward(const Call<T>& call, const plan::CpuUnit& unit) : call_(call), unit_(unit) {}

  void run() {
    for (b_ = unit_.batch.begin; b_ < unit_.batch.end; ++b_) {
      mask_.enter(b_);
      const int64_t rows = std::max(tiles_.queries, tiles_.block_queries / unit_.heads.size());
      for_each_part(plan::intersection(unit_.queries, {0, params_.queries.size(b_)}), rows, 1,
                    [&](Range block) { run_block(block); });
    }
  }

 private:
  void run_block(Range queries) {
    queries_ = queries;
    pack_queries();
    clear(output_, unit_.heads.size() * queries_.size(), call_.width_v);
    for_each_part(mask_.keys(queries_), tiles_.keys, plan::cpu_vector, [&](Range keys) { add_keys(keys); });
    store_output();
  }

  int64_t row_of(int64_t head, int64_t query) const {
    return (head - unit_.heads.begin) * queries_.size() + query - queries_.begin;
  }

  /// Multiplies the rows of Q by the scale, because packing makes this multiplication free.
  void pack_queries() {
    for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) {
      conversions<T>().pack(rows_of<const T>(params_.query, params_.queries, b_, queries_.begin, head), queries_.size(),
                            params_.head_dim, static_cast<Compute>(params_.scale),
                            query_.at(row_of(head, queries_.begin)));
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
    pack_tile_transposed<T>(params_, params_.key, b_, unit_.key_head, keys, params_.head_dim, keys_transposed_);
    pack_tile<T>(params_, params_.value, b_, unit_.key_head, keys, params_.head_dim_v, 1, values_);
  }

  void add_tile(int64_t head, Range queries, Range keys) {
    const Range columns = mask_.enter_tile(head, queries, keys);
    if (columns.empty()) return;
    pack_keys(keys);
    const int64_t row = row_of(head, queries.begin);
    multiply<Compute>(query_.at(row), keys_transposed_.at(0, columns.begin), {scores_, columns.size()}, queries.size(),
                      columns.size(), params_.head_dim, Sum::overwrite);
    inputs_.fill(score_tile_of(b_, head, queries, keys, columns));
    call_.evaluators.of(head).evaluate(scores_, queries.size() * columns.size(), std::span<Compute* const>(&scores_, 1),
                                       inputs_.arrays());
    mask_.clear_masked(scores_);
    conversions<T>().round(scores_, queries.size() * columns.size());
    const bool is_long_sum = mask_.keys(queries).size() > terms_of_sum;
    add_product<Compute>({scores_, columns.size()}, values_.at(columns.begin), output_.at(row), queries.size(),
                         params_.head_dim_v, columns.size(), is_long_sum ? product_ : nullptr);
  }

  void store_output() {
    const auto factor = static_cast<Compute>(params_.out_scale.of(b_, params_.queries.size(b_), params_.keys.size(b_)));
    const Operand* const added = call_.added;
    for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) {
      const Tile<Compute> sums = output_.at(row_of(head, queries_.begin));
      scale_rows(params_, b_, queries_, sums, params_.head_dim_v);
      if (added != nullptr) {
        std::transform(sums.data, sums.data + queries_.size() * sums.stride, sums.data,
                       [factor](Compute sum) { return sum * factor; });
        // Q of this head is not needed any more.
        add_source<T>(rows_of<const T>(*added, params_.queries, b_, queries_.begin, head), queries_.size(),
                      params_.head_dim, sums, query_.at(row_of(head, queries_.begin)).data);
      }
      conversions<T>().store(sums, queries_.size(), params_.head_dim_v, added ? Compute{1} : factor,
                             rows_of<T>(params_.output, params_.output_side(), b_, queries_.begin, head));
    }
  }

  const Call<T>& call_;
  const plan::CpuUnit& unit_;
  const Params& params_ = call_.params;
  const plan::CpuTiles& tiles_ = call_.schedule.tiles;
  TileMask<Compute> mask_{call_.mask, params_};
  TileInputs<Compute> inputs_{call_.inputs, params_, params_.parameters,
                              [this](int64_t query, int64_t key) { return mask_.keeps(query, key); }};
  bool has_keys_ = false;  // the tile of keys is packed
  int64_t b_ = 0;
  Range queries_;
  const plan::CpuBuffers& buffers_ = call_.schedule.buffers;
  Compute* const memory_ = call_.workspace();
  const Tile<Compute> query_{memory_ + buffers_.query, call_.width_q};
  const Tile<Compute> output_{memory_ + buffers_.output, call_.width_v};
  const Tile<Compute> keys_transposed_{memory_ + buffers_.keys_transposed, tiles_.keys};
  const Tile<Compute> values_{memory_ + buffers_.values, call_.width_v};
  Compute* const scores_ = memory_ + buffers_.scores;
  Compute* const product_ = memory_ + buffers_.product;
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
