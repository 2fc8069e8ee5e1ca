// The backward unit. A tile of keys and values and the accumulators of its dK and dV stay in the cache during a loop
// over tiles of queries. For each tile of scores the unit computes S = Q K^T, P = f(S) and f'(S), dP = dO V^T and
// dS = dP f'(S), and then dV += P^T dO, dK += dS^T Q and dQ += dS K. It skips products that no wanted gradient needs.
// The gradients of tensors that f reads need S and dP too, so the unit also computes their terms.
#include <array>
#include <span>
#include <vector>

#include "cpu/call.h"

namespace gdpa::cpu {
namespace {

template <class T>
class Backward {
 public:
  using Compute = ComputeType<T>;

  Backward(const Call<T>& call, const plan::CpuUnit& unit, int64_t group) : call_(call), unit_(unit), group_(group) {}

  void run() {
    const auto run_parts = [this](Range& range, int64_t most, int64_t step) {
      for_each_part(Range(range), most, step, [&](Range part) {
        range = part;
        run_batch();
      });
    };
    if (sums_keys_over_unit_) {
      run_parts(key_range_, tiles_.keys, plan::cpu_vector);
    } else if (sums_query_over_unit_ && unit_.query_sum < 0) {
      run_parts(query_range_, tiles_.block_queries, 1);
    } else {
      run_batch();
    }
  }

 private:
  /// The sums of dK, or of dV, for a tile of keys. A gradient that is not wanted has a stride of 0.
  struct KeySums {
    Tile<Compute> sums;
    double* totals;  // with the same stride
    const Operand* gradient;
    int64_t head_dim;
  };

  void run_batch() {
    begin_sums();
    for (int64_t b = unit_.batch.begin; b < unit_.batch.end; ++b) run_entry(b);
    end_sums();
  }

  void run_entry(int64_t position) {
    b_ = call_.schedule.entry(position);
    mask_.enter(b_);
    const Range queries = plan::intersection(query_range_, {0, params_.queries.size(b_)});
    if (owns_query_ && queries.size() > tiles_.block_queries) {
      for_each_part(queries, tiles_.block_queries, 1, [&](Range block) { run_block(block); });
    } else {
      run_block(queries);
    }
  }

  /// Some queries of one batch entry against all keys of the unit.
  void run_block(Range queries) {
    queries_ = queries;
    if (owns_query_) clear(grad_query_, unit_.heads.size() * queries.size(), call_.width_q);
    const Range keys = plan::intersection(key_range_, {0, params_.keys.size(b_)});
    for_each_part(keys, tiles_.keys, plan::cpu_vector, [&](Range tile) { add_keys(tile); });
    if (owns_query_) store_grad_query(queries);
  }

  /// Adds the products of the block of queries with one tile of keys to the wanted gradients.
  void add_keys(Range keys) {
    const Range active = plan::intersection(mask_.queries(keys), queries_);
    if (unit_.grad_key_value && !sums_keys_over_unit_) clear_grad_keys();
    has_keys_ = false;
    for_each_part(active, tiles_.queries, 1, [&](Range queries) {
      for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) add_tile(head, queries, keys);
    });
    if (unit_.grad_key_value && !sums_keys_over_unit_) finish_grad_keys(keys);
    if (unit_.query_sum >= 0) {
      query_terms_ += keys.size();
      if (query_terms_ >= terms_of_sum) add_to_query_sum();
    }
  }

  /// Packs the tile of keys and values, unless it is packed.
  void pack_keys(Range keys) {
    if (has_keys_) return;
    has_keys_ = true;
    pack_tile_transposed<T>(params_, params_.key, b_, unit_.key_head, keys, params_.head_dim, keys_transposed_);
    if (wants_grad_scores_) {
      pack_tile_transposed<T>(params_, params_.value, b_, unit_.key_head, keys, params_.head_dim_v, values_transposed_);
    }
    // Only dQ = scale dS K needs these rows.
    if (unit_.grad_query) {
      pack_tile<T>(params_, params_.key, b_, unit_.key_head, keys, params_.head_dim,
                   static_cast<Compute>(params_.scale), keys_);
    }
  }

  /// Multiplies the rows of Q by the scale (for S and dK), and the rows of dO by the scale of the output (for dV and
  /// dS).
  void pack_queries(int64_t head, Range queries) {
    const double out_scale = params_.out_scale.of(b_, params_.queries.size(b_), params_.keys.size(b_));
    conversions<T>().pack(rows_of<const T>(params_.query, params_.queries, b_, queries.begin, head), queries.size(),
                          params_.head_dim, static_cast<Compute>(params_.scale), query_);
    conversions<T>().pack(rows_of<const T>(params_.grad_output, params_.output_side(), b_, queries.begin, head),
                          queries.size(), params_.head_dim_v, static_cast<Compute>(out_scale), grad_output_);
    scale_rows(params_, b_, queries, grad_output_, params_.head_dim_v);
  }

  void add_tile(int64_t head, Range queries, Range keys) {
    const Range columns = mask_.enter_tile(head, queries, keys);
    if (columns.empty()) return;
    pack_keys(keys);
    pack_queries(head, queries);
    compute_grad_scores(head, queries, keys, columns);
    const int64_t rows = queries.size();
    const Tile<const Compute> scores{scores_, columns.size()}, grad_scores{grad_scores_, columns.size()};
    const auto& [of_keys, of_values] = key_sums_;
    if (wants_value_) {
      multiply<Compute>(scores, grad_output_, of_values.sums.at(columns.begin), columns.size(), params_.head_dim_v,
                        rows, Sum::add, Left::transposed);
    }
    if (wants_key_) {
      multiply<Compute>(grad_scores, query_, of_keys.sums.at(columns.begin), columns.size(), params_.head_dim, rows,
                        Sum::add, Left::transposed);
    }
    if (unit_.grad_key_value) {
      key_terms_ += rows;
      if (key_terms_ >= terms_of_sum) add_to_key_totals();
    }
    if (unit_.grad_query) {
      add_product<Compute>(grad_scores, keys_.at(columns.begin), grad_query_.at(grad_query_row(head, queries.begin)),
                           rows, params_.head_dim, columns.size(), is_long_query_sum(queries) ? product_ : nullptr);
    }
  }

  /// Computes P into scores_ and, if a wanted gradient needs dP, dS (without scale) into grad_scores_, with 0 outside
  /// the mask. It adds the terms of the gradients of tensors to their sums.
  void compute_grad_scores(int64_t head, Range queries, Range keys, Range columns) {
    const int64_t rows = queries.size();
    const int64_t count = rows * columns.size();
    multiply<Compute>(query_, keys_transposed_.at(0, columns.begin), {scores_, columns.size()}, rows, columns.size(),
                      params_.head_dim, Sum::overwrite);
    inputs_.fill(score_tile_of(b_, head, queries, keys, columns), adds_parameters_);
    const ParameterSums::Head* const terms = adds_parameters_ ? &call_.parameter_sums.head(head) : nullptr;
    const Evaluator& evaluator = terms != nullptr ? terms->evaluator : call_.evaluators.of(head);
    prepare_results(terms != nullptr ? terms->results - 2 : 0, count);
    evaluator.evaluate<Compute>(scores_, count, results_, inputs_.arrays());
    if (wants_grad_scores_) {
      multiply<Compute>(grad_output_, values_transposed_.at(0, columns.begin), {grad_scores_, columns.size()}, rows,
                        columns.size(), params_.head_dim_v, Sum::overwrite);
      const auto finish = [&](const Compute* factors, Compute* products) {
        for (int64_t i = 0; i < count; ++i) products[i] *= factors[i];
        mask_.clear_masked(products);
      };
      for (std::size_t k = 2; k < results_.size(); ++k) finish(grad_scores_, results_[k]);
      finish(derivatives_, grad_scores_);
    }
    if (terms != nullptr) {
      for (const ParameterSums::Term& term : terms->terms) {
        inputs_.add_gradient(term.input, term.result == 1 ? grad_scores_ : results_[term.result],
                             call_.parameter_sums.of(group_, term.tensor));
      }
    }
    if (!wants_value_) return;
    mask_.clear_masked(scores_);
    conversions<T>().round(scores_, count);
  }

  /// The results of the evaluator: P, f', and `terms` derivatives of f with respect to inputs of wanted tensors.
  void prepare_results(std::size_t terms, int64_t count) {
    terms_.resize(terms * static_cast<std::size_t>(count));
    results_ = {scores_, derivatives_};
    for (std::size_t k = 0; k < terms; ++k) results_.push_back(terms_.data() + k * static_cast<std::size_t>(count));
  }

  /// Whether the accumulator of dQ gets more than terms_of_sum terms: the keys of these queries, or, if the unit sums
  /// dQ over batch entries, the keys of all of them. With a partial sum in double, add_to_query_sum limits the terms.
  bool is_long_query_sum(Range queries) const {
    if (unit_.query_sum >= 0) return false;
    return sums_query_over_unit_ || mask_.keys(queries).size() > terms_of_sum;
  }

  /// The row of the accumulator of dQ for this query, which has the rows of all heads of the block.
  int64_t grad_query_row(int64_t head, int64_t query) const {
    return (head - unit_.heads.begin) * queries_.size() + query - queries_.begin;
  }

  /// Adds the accumulator of dQ of a shared query to its partial sum in double, and clears the accumulator.
  void add_to_query_sum() {
    conversions<Compute>().accumulate(grad_query_, query_sum_rows(), call_.width_q,
                                      {call_.partial_sums + unit_.query_sum, call_.width_q});
    clear_query_sum();
  }

  void clear_query_sum() {
    clear(grad_query_, query_sum_rows(), call_.width_q);
    query_terms_ = 0;
  }

  /// The rows of dQ that are summed over the unit.
  int64_t query_sum_rows() const {
    return unit_.heads.size() * (unit_.query_sum >= 0 ? params_.queries.length : query_range_.size());
  }

  void store_grad_query(Range queries) {
    for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) {
      const Tile<Compute> sums = grad_query_.at((head - unit_.heads.begin) * queries.size());
      if (call_.added != nullptr) {
        add_source<T>(rows_of<const T>(*call_.added, params_.queries, b_, queries.begin, head), queries.size(),
                      params_.head_dim, sums, grad_output_.data);
      }
      conversions<T>().store(sums, queries.size(), params_.head_dim, 1,
                             rows_of<T>(params_.grad_query, params_.queries, b_, queries.begin, head));
    }
  }

  void clear_grad_keys() {
    for (const KeySums& of : key_sums_) std::fill_n(of.sums.data, tiles_.keys * of.sums.stride, Compute{0});
    key_terms_ = 0;
  }

  /// Adds the accumulators of dK and dV to the totals in double, and clears the accumulators.
  void add_to_key_totals() {
    for (const KeySums& of : key_sums_) {
      if (!has_key_totals_) std::fill_n(of.totals, tiles_.keys * of.sums.stride, 0.0);
      conversions<Compute>().accumulate(of.sums, tiles_.keys, of.sums.stride, {of.totals, of.sums.stride});
    }
    has_key_totals_ = true;
    clear_grad_keys();
  }

  /// Rounds the totals of dK and dV of the tile of keys to the compute type, into the accumulators.
  void end_grad_keys() {
    if (!has_key_totals_) return;
    add_to_key_totals();
    for (const KeySums& of : key_sums_) {
      std::transform(of.totals, of.totals + tiles_.keys * of.sums.stride, of.sums.data,
                     [](double total) { return static_cast<Compute>(total); });
    }
    has_key_totals_ = false;
  }

  /// Adds dK and dV of a finished tile of keys to the partial sums, or stores them if the unit alone owns them.
  void finish_grad_keys(Range keys) {
    end_grad_keys();
    if (unit_.key_sum < 0) {
      store_grad_keys(keys);
      return;
    }
    double* partial_sum = call_.partial_sums + unit_.key_sum;
    const int64_t row = params_.keys.begin(b_) + keys.begin - unit_.key_rows.begin;
    for (const KeySums& of : key_sums_) {
      const int64_t stride = of.sums.stride;
      conversions<Compute>().accumulate(of.sums, keys.size(), stride, {partial_sum + row * stride, stride});
      partial_sum += unit_.key_rows.size() * stride;
    }
  }

  void store_grad_keys(Range keys) {
    for (const KeySums& of : key_sums_) {
      if (of.sums.stride == 0) continue;
      conversions<T>().store(of.sums, keys.size(), of.head_dim, 1,
                             rows_of<T>(*of.gradient, params_.keys, b_, keys.begin, unit_.key_head));
    }
  }

  /// Clears the sums over all batch entries of the unit: its partial sums, and rows of a shared operand that it owns.
  void begin_sums() {
    if (unit_.key_sum >= 0) {
      const int64_t elements = unit_.key_rows.size() * (call_.sum_width_k + call_.sum_width_v);
      std::fill_n(call_.partial_sums + unit_.key_sum, elements, 0.0);
    }
    if (unit_.query_sum >= 0) {
      std::fill_n(call_.partial_sums + unit_.query_sum, query_sum_rows() * call_.width_q, 0.0);
    }
    if (sums_query_over_unit_) clear_query_sum();
    if (sums_keys_over_unit_) clear_grad_keys();
  }

  void end_sums() {
    if (sums_keys_over_unit_) {
      end_grad_keys();
      store_grad_keys(key_range_);
    }
    if (unit_.query_sum >= 0) {
      add_to_query_sum();
    } else if (sums_query_over_unit_) {
      store_grad_query(query_range_);
    }
  }

  const Call<T>& call_;
  const plan::CpuUnit& unit_;
  const int64_t group_;  // of the sums of gradients of tensors
  const Params& params_ = call_.params;
  const plan::CpuTiles& tiles_ = call_.schedule.tiles;
  TileMask<Compute> mask_{call_.mask, params_};
  TileInputs<Compute> inputs_{call_.inputs, params_, params_.parameters,
                              [this](int64_t query, int64_t key) { return mask_.keeps(query, key); }};
  const bool wants_key_ = unit_.grad_key_value && call_.wanted.key;      // the unit computes dK
  const bool wants_value_ = unit_.grad_key_value && call_.wanted.value;  // the unit computes dV
  const bool adds_parameters_ = plan::adds_parameters(unit_, call_.wanted);
  const bool wants_grad_scores_ = unit_.grad_query || wants_key_ || adds_parameters_;  // a wanted gradient needs dP
  /// dK and dV are summed over the unit rather than over one tile of keys, dQ rather than over one block of queries.
  const bool sums_keys_over_unit_ = unit_.sums_over_batch && unit_.grad_key_value;
  const bool sums_query_over_unit_ = unit_.query_sum >= 0 || (unit_.sums_over_batch && unit_.grad_query);
  const bool owns_query_ = unit_.grad_query && !sums_query_over_unit_;
  std::vector<Compute*> results_;
  std::vector<Compute> terms_;    // of the gradients of tensors, before and after the factor dP
  bool has_keys_ = false;         // the tile of keys is packed
  Range key_range_ = unit_.keys;  // of the unit, or the part of it that is being summed over the batch
  Range query_range_ = unit_.queries;
  int64_t key_terms_ = 0;        // queries in the sums of dK and dV that are not in the totals
  bool has_key_totals_ = false;  // of this tile of keys
  int64_t query_terms_ = 0;      // keys in the sums of dQ that are not in the partial sums yet
  int64_t b_ = 0;
  Range queries_;
  const plan::CpuBuffers& buffers_ = call_.schedule.buffers;
  Compute* const memory_ = call_.workspace();
  const Tile<Compute> query_{memory_ + buffers_.query, call_.width_q};
  const Tile<Compute> grad_output_{memory_ + buffers_.grad_output, call_.width_v};
  const Tile<Compute> keys_transposed_{memory_ + buffers_.keys_transposed, tiles_.keys};
  const Tile<Compute> values_transposed_{memory_ + buffers_.values_transposed, tiles_.keys};
  const Tile<Compute> keys_{memory_ + buffers_.keys, call_.width_q};
  const Tile<Compute> grad_query_{memory_ + buffers_.grad_query, call_.width_q};
  Compute* const scores_ = memory_ + buffers_.scores;
  Compute* const derivatives_ = memory_ + buffers_.derivatives;
  Compute* const grad_scores_ = memory_ + buffers_.grad_scores;
  Compute* const product_ = memory_ + buffers_.product;
  double* const key_totals_ = reinterpret_cast<double*>(memory_ + buffers_.key_totals);
  const std::array<KeySums, 2> key_sums_ = {
      KeySums{{memory_ + buffers_.grad_keys, call_.sum_width_k}, key_totals_, &params_.grad_key, params_.head_dim},
      KeySums{{memory_ + buffers_.grad_values, call_.sum_width_v},
              key_totals_ + tiles_.keys* call_.sum_width_k,
              &params_.grad_value,
              params_.head_dim_v}};
};

}  // namespace

template <class T>
void backward_unit(const Call<T>& call, const plan::CpuUnit& unit, int64_t group) {
  Backward<T>(call, unit, group).run();
}

template <class T>
void reduce(const Call<T>& call, const plan::CpuReduction& reduction) {
  using Compute = ComputeType<T>;
  const Params& params = call.params;
  const int64_t rows = reduction.rows.size(), b = call.schedule.entry(reduction.batch);
  const double* sums = call.partial_sums + reduction.first;
  const auto reduce_to = [&](const Operand& gradient, const Sequences& side, int64_t head_dim, int64_t width) {
    const int64_t elements = rows * width;
    auto* const total =
        static_cast<double*>(thread_workspace(elements * static_cast<int64_t>(sizeof(double) + sizeof(Compute))));
    auto* const rounded = reinterpret_cast<Compute*>(total + elements);
    std::fill_n(total, elements, 0.0);
    for (int64_t i = 0; i < reduction.count; ++i) {
      conversions<double>().accumulate({sums + i * reduction.stride + reduction.rows.begin * width, width}, rows,
                                       head_dim, {total, width});
    }
    std::transform(total, total + elements, rounded, [](double sum) { return static_cast<Compute>(sum); });
    conversions<T>().store({rounded, width}, rows, head_dim, 1,
                           rows_of<T>(gradient, side, b, reduction.rows.begin, reduction.head));
    sums += reduction.length * width;
  };
  if (reduction.of_query) {
    reduce_to(params.grad_query, params.queries, params.head_dim, call.width_q);
    return;
  }
  if (call.wanted.key) reduce_to(params.grad_key, params.keys, params.head_dim, call.sum_width_k);
  if (call.wanted.value) reduce_to(params.grad_value, params.keys, params.head_dim_v, call.sum_width_v);
}

#define GDPA_INSTANTIATE(T)                                                   \
  template void backward_unit(const Call<T>&, const plan::CpuUnit&, int64_t); \
  template void reduce(const Call<T>&, const plan::CpuReduction&);
GDPA_INSTANTIATE(float)
GDPA_INSTANTIATE(double)
GDPA_INSTANTIATE(BFloat16)
GDPA_INSTANTIATE(Float16)
#undef GDPA_INSTANTIATE

}  // namespace gdpa::cpu
