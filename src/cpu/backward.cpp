// The backward unit. A tile of keys and values and the accumulators of its dK and dV stay in the cache during a loop
// over tiles of queries. For each tile of scores the unit computes S = Q K^T, P = f(S) and f'(S), dP = dO V^T and
// dS = dP f'(S), and then dV += P^T dO, dK += dS^T Q and dQ += dS K. It skips products that no wanted gradient needs.
// The gradients of tensors that f reads need S and dP too, so the unit also computes their terms.
#include <array>
#include <span>
#include <vector>

#include "cpu/call.h"
#include "cpu/workspace.h"

namespace gdpa::cpu {
namespace {

template <class T>
class Backward {
 public:
  using Compute = ComputeType<T>;

  Backward(const Call<T>& call, const plan::CpuUnit& unit, int64_t group)
      : call_(call),
        params_(call.params),
        tiles_(call.schedule.tiles),
        unit_(unit),
        group_(group),
        mask_(call.mask, call.params),
        inputs_(call.inputs, call.params, call.params.parameters,
                [this](int64_t query, int64_t key) { return mask_.keeps(query, key); }) {
    const plan::CpuBuffers& buffers = call.schedule.buffers;
    auto* base = static_cast<Compute*>(thread_workspace(buffers.total * static_cast<int64_t>(sizeof(Compute))));
    query_ = base + buffers.query;
    grad_output_ = base + buffers.grad_output;
    keys_transposed_ = base + buffers.keys_transposed;
    values_transposed_ = base + buffers.values_transposed;
    keys_ = base + buffers.keys;
    scores_ = base + buffers.scores;
    derivatives_ = base + buffers.derivatives;
    grad_scores_ = base + buffers.grad_scores;
    grad_keys_ = base + buffers.grad_keys;
    grad_values_ = base + buffers.grad_values;
    key_totals_ = reinterpret_cast<double*>(base + buffers.key_totals);
    grad_query_ = base + buffers.grad_query;
    product_ = base + buffers.product;
  }

  void run() {
    key_range_ = unit_.keys;
    query_range_ = unit_.queries;
    wants_key_ = unit_.grad_key_value && call_.wanted.key;
    wants_value_ = unit_.grad_key_value && call_.wanted.value;
    adds_parameters_ = plan::adds_parameters(unit_, call_.wanted);
    wants_grad_scores_ = unit_.grad_query || wants_key_ || adds_parameters_;
    sums_keys_over_unit_ = unit_.sums_over_batch && unit_.grad_key_value;
    sums_query_over_unit_ = unit_.query_sum >= 0 || (unit_.sums_over_batch && unit_.grad_query);
    if (sums_keys_over_unit_) {
      for_each_part(unit_.keys, tiles_.keys, plan::cpu_vector, [&](Range keys) {
        key_range_ = keys;
        run_batch();
      });
    } else if (sums_query_over_unit_ && unit_.query_sum < 0) {
      for_each_part(unit_.queries, tiles_.block_queries, 1, [&](Range queries) {
        query_range_ = queries;
        run_batch();
      });
    } else {
      run_batch();
    }
  }

 private:
  void run_batch() {
    begin_sums();
    for (int64_t b = unit_.batch.begin; b < unit_.batch.end; ++b) run_entry(b);
    end_sums();
  }

  void run_entry(int64_t position) {
    const int64_t b = call_.schedule.entry(position);
    b_ = b;
    length_q_ = params_.queries.size(b);
    length_k_ = params_.keys.size(b);
    mask_.enter(b);
    out_scale_ = static_cast<Compute>(params_.out_scale.of(b, length_q_, length_k_));
    const Range queries = plan::intersection(query_range_, {0, length_q_});
    const bool in_blocks = unit_.grad_query && !sums_query_over_unit_ && queries.size() > tiles_.block_queries;
    if (!in_blocks) {
      run_block(queries);
      return;
    }
    for_each_part(queries, tiles_.block_queries, 1, [&](Range block) { run_block(block); });
  }

  /// Some queries of one batch entry against all keys of the unit.
  void run_block(Range queries) {
    queries_ = queries;
    const int64_t rows = std::max<int64_t>(0, queries.size());
    const bool owns_query = unit_.grad_query && !sums_query_over_unit_;
    if (owns_query) clear(grad_query_, call_.width_q, unit_.heads.size() * rows, call_.width_q);
    const Range keys = plan::intersection(key_range_, {0, length_k_});
    for_each_part(keys, tiles_.keys, plan::cpu_vector, [&](Range tile) { add_keys(tile); });
    if (owns_query) store_grad_query(queries);
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
    const T* key = rows_of<const T>(params_.key, params_.keys, b_, keys.begin, unit_.key_head);
    const T* value = rows_of<const T>(params_.value, params_.keys, b_, keys.begin, unit_.key_head);
    pack_tile_transposed<T>(key, params_.key.row_stride, keys.size(), params_.head_dim, keys_transposed_, tiles_.keys);
    if (wants_grad_scores_) {
      pack_tile_transposed<T>(value, params_.value.row_stride, keys.size(), params_.head_dim_v, values_transposed_,
                              tiles_.keys);
    }
    // Only dQ = scale dS K needs these rows.
    if (unit_.grad_query) {
      pack_tile<T>(key, params_.key.row_stride, keys.size(), params_.head_dim, static_cast<Compute>(params_.scale),
                   keys_, call_.width_q);
    }
  }

  /// Multiplies the rows of Q by the scale (for S and dK), and the rows of dO by the scale of the output (for dV and
  /// dS).
  void pack_queries(int64_t head, Range queries) {
    pack_rows<T>(rows_of<const T>(params_.query, params_.queries, b_, queries.begin, head), params_.query.row_stride,
                 queries.size(), params_.head_dim, static_cast<Compute>(params_.scale), query_, call_.width_q);
    pack_rows<T>(rows_of<const T>(params_.grad_output, params_.output_side(), b_, queries.begin, head),
                 params_.grad_output.row_stride, queries.size(), params_.head_dim_v, out_scale_, grad_output_,
                 call_.width_v);
    scale_rows(params_, b_, queries, grad_output_, call_.width_v, params_.head_dim_v);
  }

  void add_tile(int64_t head, Range queries, Range keys) {
    const Columns columns = mask_.enter_tile(head, queries, keys);
    if (columns.count == 0) return;
    pack_keys(keys);
    pack_queries(head, queries);
    compute_grad_scores(head, queries, keys, columns);
    const int64_t rows = queries.size();
    const int64_t head_dim = params_.head_dim;
    const int64_t head_dim_v = params_.head_dim_v;
    if (wants_value_) {
      multiply_transposed<Compute>({scores_, columns.count}, {grad_output_, call_.width_v},
                                   {grad_values_ + columns.begin * call_.sum_width_v, call_.sum_width_v}, columns.count,
                                   head_dim_v, rows, Sum::add);
    }
    if (wants_key_) {
      multiply_transposed<Compute>({grad_scores_, columns.count}, {query_, call_.width_q},
                                   {grad_keys_ + columns.begin * call_.sum_width_k, call_.sum_width_k}, columns.count,
                                   head_dim, rows, Sum::add);
    }
    if (unit_.grad_key_value) {
      key_terms_ += rows;
      if (key_terms_ >= terms_of_sum) add_to_key_totals();
    }
    if (unit_.grad_query) {
      add_product<Compute>({grad_scores_, columns.count}, {keys_ + columns.begin * call_.width_q, call_.width_q},
                           {grad_query_ + grad_query_row(head, queries.begin) * call_.width_q, call_.width_q}, rows,
                           head_dim, columns.count, is_long_query_sum(queries) ? product_ : nullptr);
    }
  }

  /// Computes P into scores_ and dS (without scale) into grad_scores_, with 0 outside the mask. If no wanted gradient
  /// needs dP, it does not compute dS.
  void compute_grad_scores(int64_t head, Range queries, Range keys, Columns columns) {
    const int64_t rows = queries.size();
    const int64_t count = rows * columns.count;
    multiply<Compute>({query_, call_.width_q}, {keys_transposed_ + columns.begin, tiles_.keys},
                      {scores_, columns.count}, rows, columns.count, params_.head_dim, Sum::overwrite);
    inputs_.fill(score_tile_of(b_, head, queries, keys, columns), adds_parameters_);
    const std::array<Compute*, 2> results = {scores_, derivatives_};
    const auto evaluate = [&](std::size_t count_of_results) {
      call_.evaluator_of(head).evaluate(scores_, count, std::span<Compute* const>(results).first(count_of_results),
                                        inputs_.arrays());
    };
    if (!wants_grad_scores_) {
      evaluate(call_.wants_grad_scores() ? 2 : 1);
      mask_.clear_masked(scores_);
      round_through<T>(scores_, count);
      return;
    }
    multiply<Compute>({grad_output_, call_.width_v}, {values_transposed_ + columns.begin, tiles_.keys},
                      {grad_scores_, columns.count}, rows, columns.count, params_.head_dim_v, Sum::overwrite);
    const auto finish = [&](const Compute* factors, Compute* products) {
      for (int64_t i = 0; i < count; ++i) products[i] *= factors[i];
      mask_.clear_masked(products);
    };
    if (adds_parameters_) {
      const ParameterSums::Head& of_head = call_.parameter_sums.head(head);
      const std::vector<Compute*> terms = evaluate_terms(of_head, count);
      for (std::size_t k = 2; k < terms.size(); ++k) finish(grad_scores_, terms[k]);
      finish(derivatives_, grad_scores_);
      for (const ParameterSums::Term& term : of_head.terms) {
        inputs_.add_gradient(term.input, term.result == 1 ? grad_scores_ : terms[term.result],
                             call_.parameter_sums.of(group_, term.tensor));
      }
    } else {
      evaluate(2);
      finish(derivatives_, grad_scores_);
    }
    if (!wants_value_) return;
    mask_.clear_masked(scores_);
    round_through<T>(scores_, count);
  }

  /// Computes P, f' and the derivatives of f with respect to the inputs of the wanted tensors. Returns the results.
  std::vector<Compute*> evaluate_terms(const ParameterSums::Head& head, int64_t count) {
    terms_.resize((head.results - 2) * static_cast<std::size_t>(count));
    std::vector<Compute*> results = {scores_, derivatives_};
    for (std::size_t k = 2; k < head.results; ++k) {
      results.push_back(terms_.data() + (k - 2) * static_cast<std::size_t>(count));
    }
    head.evaluator.evaluate<Compute>(scores_, count, results, inputs_.arrays());
    return results;
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
    for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) {
      const int64_t first = (head - unit_.heads.begin) * params_.queries.length * call_.width_q;
      accumulate_rows<Compute>(grad_query_ + first, call_.width_q, params_.queries.length, call_.width_q,
                               call_.partial_sums + unit_.query_sum + first, call_.width_q);
    }
    clear_query_sum();
  }

  void clear_query_sum() {
    clear(grad_query_, call_.width_q, unit_.heads.size() * params_.queries.length, call_.width_q);
    query_terms_ = 0;
  }

  void store_grad_query(Range queries) {
    for (int64_t head = unit_.heads.begin; head < unit_.heads.end; ++head) {
      Compute* const sums = grad_query_ + (head - unit_.heads.begin) * queries.size() * call_.width_q;
      if (call_.added != nullptr) {
        add_source<T>(rows_of<const T>(*call_.added, params_.queries, b_, queries.begin, head), call_.added->row_stride,
                      queries.size(), params_.head_dim, sums, call_.width_q, grad_output_);
      }
      store_rows<T>(sums, call_.width_q, queries.size(), params_.head_dim, Compute{1},
                    rows_of<T>(params_.grad_query, params_.queries, b_, queries.begin, head),
                    params_.grad_query.row_stride);
    }
  }

  void clear_grad_keys() {
    std::fill_n(grad_keys_, tiles_.keys * call_.sum_width_k, Compute{0});
    std::fill_n(grad_values_, tiles_.keys * call_.sum_width_v, Compute{0});
    key_terms_ = 0;
  }

  int64_t key_sum_row() const { return call_.sum_width_k + call_.sum_width_v; }

  double* value_totals() const { return key_totals_ + tiles_.keys * call_.sum_width_k; }

  /// Adds the accumulators of dK and dV to the totals in double, and clears the accumulators.
  void add_to_key_totals() {
    if (!has_key_totals_) std::fill_n(key_totals_, tiles_.keys * key_sum_row(), 0.0);
    has_key_totals_ = true;
    accumulate_rows<Compute>(grad_keys_, call_.sum_width_k, tiles_.keys, call_.sum_width_k, key_totals_,
                             call_.sum_width_k);
    accumulate_rows<Compute>(grad_values_, call_.sum_width_v, tiles_.keys, call_.sum_width_v, value_totals(),
                             call_.sum_width_v);
    clear_grad_keys();
  }

  /// Rounds the totals of dK and dV of the tile of keys to the compute type, into the accumulators.
  void end_grad_keys() {
    if (!has_key_totals_) return;
    add_to_key_totals();
    const auto round = [](double total) { return static_cast<Compute>(total); };
    std::transform(key_totals_, value_totals(), grad_keys_, round);
    std::transform(value_totals(), value_totals() + tiles_.keys * call_.sum_width_v, grad_values_, round);
    has_key_totals_ = false;
  }

  /// Adds dK and dV of a finished tile of keys to the partial sums, or stores them if the unit alone owns them.
  void finish_grad_keys(Range keys) {
    end_grad_keys();
    if (unit_.key_sum < 0) {
      store_grad_keys(keys);
      return;
    }
    double* sum = call_.partial_sums + unit_.key_sum;
    const int64_t row = params_.keys.begin(b_) + keys.begin - unit_.key_rows.begin;
    accumulate_rows<Compute>(grad_keys_, call_.sum_width_k, keys.size(), call_.sum_width_k,
                             sum + row * call_.sum_width_k, call_.sum_width_k);
    sum += unit_.key_rows.size() * call_.sum_width_k;
    accumulate_rows<Compute>(grad_values_, call_.sum_width_v, keys.size(), call_.sum_width_v,
                             sum + row * call_.sum_width_v, call_.sum_width_v);
  }

  void store_grad_keys(Range keys) {
    if (wants_key_) {
      store_rows<T>(grad_keys_, call_.sum_width_k, keys.size(), params_.head_dim, Compute{1},
                    rows_of<T>(params_.grad_key, params_.keys, b_, keys.begin, unit_.key_head),
                    params_.grad_key.row_stride);
    }
    if (wants_value_) {
      store_rows<T>(grad_values_, call_.sum_width_v, keys.size(), params_.head_dim_v, Compute{1},
                    rows_of<T>(params_.grad_value, params_.keys, b_, keys.begin, unit_.key_head),
                    params_.grad_value.row_stride);
    }
  }

  /// Clears the sums over all batch entries of the unit: its partial sums, and rows of a shared operand that it owns.
  void begin_sums() {
    if (unit_.key_sum >= 0) {
      std::fill_n(call_.partial_sums + unit_.key_sum, unit_.key_rows.size() * key_sum_row(), 0.0);
    }
    if (unit_.query_sum >= 0) {
      std::fill_n(call_.partial_sums + unit_.query_sum, unit_.heads.size() * params_.queries.length * call_.width_q,
                  0.0);
      clear_query_sum();
    } else if (sums_query_over_unit_) {
      clear(grad_query_, call_.width_q, unit_.heads.size() * query_range_.size(), call_.width_q);
    }
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
  const Params& params_;
  const plan::CpuTiles& tiles_;
  const plan::CpuUnit& unit_;
  int64_t group_;  // of the sums of gradients of tensors
  TileMask<Compute> mask_;
  TileInputs<Compute> inputs_;
  std::vector<Compute> terms_;  // of the gradients of tensors, before and after the factor dP
  bool has_keys_ = false;       // the tile of keys is packed
  Range key_range_;             // of the unit, or the part of it that is being summed over the batch
  Range query_range_;
  int64_t key_terms_ = 0;              // queries in the sums of dK and dV that are not in the totals
  bool has_key_totals_ = false;        // of this tile of keys
  int64_t query_terms_ = 0;            // keys in the sums of dQ that are not in the partial sums yet
  bool wants_key_ = false;             // the unit computes dK
  bool wants_value_ = false;           // the unit computes dV
  bool wants_grad_scores_ = false;     // a wanted gradient needs dP
  bool adds_parameters_ = false;       // the unit computes the terms of the gradients of tensors
  bool sums_query_over_unit_ = false;  // dQ is summed over the unit rather than over one block of queries
  bool sums_keys_over_unit_ = false;   // dK and dV are summed over the unit rather than over one tile of keys
  int64_t b_ = 0;
  int64_t length_q_ = 0;
  int64_t length_k_ = 0;
  Compute out_scale_ = 1;
  Range queries_;
  Compute* query_;
  Compute* grad_output_;
  Compute* keys_transposed_;
  Compute* values_transposed_;
  Compute* keys_;
  Compute* scores_;
  Compute* derivatives_;
  Compute* grad_scores_;
  Compute* grad_keys_;
  Compute* grad_values_;
  double* key_totals_;
  Compute* product_;
  Compute* grad_query_;
};

template <class T>
void reduce_rows(const double* sums, const plan::CpuReduction& reduction, int64_t width, int64_t padded_width,
                 T* destination, int64_t stride) {
  using Compute = ComputeType<T>;
  const int64_t rows = reduction.rows.size(), elements = rows * padded_width;
  auto* const total =
      static_cast<double*>(thread_workspace(elements * static_cast<int64_t>(sizeof(double) + sizeof(Compute))));
  auto* const rounded = reinterpret_cast<Compute*>(total + elements);
  clear(total, padded_width, rows, padded_width);
  for (int64_t i = 0; i < reduction.count; ++i) {
    accumulate_rows<double>(sums + i * reduction.stride + reduction.rows.begin * padded_width, padded_width, rows,
                            width, total, padded_width);
  }
  std::transform(total, total + elements, rounded, [](double sum) { return static_cast<Compute>(sum); });
  store_rows<T>(rounded, padded_width, rows, width, Compute{1}, destination, stride);
}

}  // namespace

template <class T>
void backward_unit(const Call<T>& call, const plan::CpuUnit& unit, int64_t group) {
  Backward<T>(call, unit, group).run();
}

template <class T>
void reduce(const Call<T>& call, const plan::CpuReduction& reduction) {
  const Params& params = call.params;
  const int64_t row = reduction.rows.begin, b = call.schedule.entry(reduction.batch);
  const auto* sums = call.partial_sums + reduction.first;
  if (reduction.of_query) {
    reduce_rows<T>(sums, reduction, params.head_dim, call.width_q,
                   rows_of<T>(params.grad_query, params.queries, b, row, reduction.head), params.grad_query.row_stride);
    return;
  }
  if (call.wanted.key) {
    reduce_rows<T>(sums, reduction, params.head_dim, call.sum_width_k,
                   rows_of<T>(params.grad_key, params.keys, b, row, reduction.head), params.grad_key.row_stride);
  }
  if (call.wanted.value) {
    reduce_rows<T>(sums + reduction.length * call.sum_width_k, reduction, params.head_dim_v, call.sum_width_v,
                   rows_of<T>(params.grad_value, params.keys, b, row, reduction.head), params.grad_value.row_stride);
  }
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
