// RandomProblem: random attention problems over every option - forms, lengths, heads, widths, masks, strides,
// fused views, scales, types, functions, threads - with fresh data, and the same problem for the reference.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gdpa/attention.h"
#include "random_expression.h"
#include "random_mask.h"
#include "random_score.h"
#include "reference.h"
#include "strided.h"

namespace gdpa::test {

/// A function by its text, and by the derivative that its text should have.
struct NamedFunction {
  std::string text;
  std::function<double(double)> value;
  std::function<double(double)> derivative;
};

/// Smooth, so that no rounding of a score moves the derivative; with f(0) = 0 and without.
inline const std::vector<NamedFunction>& smooth_functions() {
  static const double root_two = std::sqrt(2.0);
  static const double root_two_pi = std::sqrt(2.0 * std::acos(-1.0));
  static const std::vector<NamedFunction> functions = {
      {"gelu", [](double s) { return 0.5 * s * (1 + std::erf(s / root_two)); },
       [](double s) { return 0.5 * (1 + std::erf(s / root_two)) + s * std::exp(-0.5 * s * s) / root_two_pi; }},
      {"silu", [](double s) { return s / (1 + std::exp(-s)); },
       [](double s) {
         const double p = 1 / (1 + std::exp(-s));
         return p * (1 + s * (1 - p));
       }},
      {"identity", [](double s) { return s; }, [](double) { return 1.0; }},
      {"sigmoid", [](double s) { return 1 / (1 + std::exp(-s)); },
       [](double s) {
         const double p = 1 / (1 + std::exp(-s));
         return p * (1 - p);
       }},
      {"relu2", [](double s) { return s > 0 ? s * s : 0.0; }, [](double s) { return s > 0 ? 2 * s : 0.0; }},
      {"exp(-s * s) + 0.25 * s", [](double s) { return std::exp(-s * s) + 0.25 * s; },
       [](double s) { return -2 * s * std::exp(-s * s) + 0.25; }},
      {"cos(s)", [](double s) { return std::cos(s); }, [](double s) { return -std::sin(s); }},
      {"s * exp(-s * s)", [](double s) { return s * std::exp(-s * s); },
       [](double s) { return (1 - 2 * s * s) * std::exp(-s * s); }},
      {"1", [](double) { return 1.0; }, [](double) { return 0.0; }},
  };
  return functions;
}

/// A layout that a problem has. Otherwise every layout is drawn with a small probability.
enum class DrawnLayout { any, batch_map, overlapping_keys, pages, output_offsets };

/// The options that are given instead of drawn.
struct Given {
  std::optional<DType> dtype = {};
  std::optional<std::string> function = {};  ///< the text of one of smooth_functions()
  std::optional<DrawnFunction> drawn = {};   ///< in its place
  std::optional<int64_t> head_dim = {};
  std::optional<int64_t> head_dim_v = {};
  int64_t gap_unit = 1;                     ///< strides leave gaps of multiples of so many elements
  bool streams_queries = false;             ///< many times as many as keys, and no mask
  bool on_cpu = true;                       ///< tensors of the score may be float64
  std::optional<std::uint64_t> score = {};  ///< the seed of a score that reads positions and tensors
  bool is_forward_only = false;             ///< may have pages
  std::optional<std::uint64_t> mask = {};   ///< the seed of a mask expression, in place of a window
  DrawnLayout layout = DrawnLayout::any;    ///< pages: with is_forward_only
  bool draws_scale = false;                 ///< any scale, where others are the default or one of three numbers
  bool adds_query = false;                  ///< add_query, with head_dim_v = head_dim, and queries that are not shared
  /// Decides the options that select kernels: forms, layouts, out_scale and the wanted gradients. A test with few of
  /// these seeds compiles few kernels.
  std::optional<std::uint64_t> kind = {};
};

class RandomProblem {
 public:
  explicit RandomProblem(std::uint64_t seed, Given given = {})
      : random_(seed), kinds_(given.kind.value_or(0)), given_(std::move(given)) {
    choose();
    if (given_.score) choose_score();
    if (given_.mask) choose_mask_expression();
    lay_out();
    fill();
    choose_wanted();
    const bool may_have_pages = given_.is_forward_only && !given_.score && key_form_ == 0 && !has_map_;
    if (may_have_pages && (is(DrawnLayout::pages) || chance(0.5))) divide_into_pages();
  }

  std::string describe() const { return description_; }
  DType dtype() const { return dtype_; }
  const WantedGradients& wanted() const { return wanted_; }

  /// The number of scores in all heads.
  int64_t scores() const {
    return heads_q_ * std::inner_product(lengths_q_.begin(), lengths_q_.end(), lengths_k_.begin(), int64_t{0});
  }

  Attention attention() const {
    return attention([](const Strided& operand) { return operand.view(); });
  }

  /// The problem with every operand seen through `view`, which may have taken it elsewhere.
  template <class View>
  Attention attention(const View& view) const {
    Attention attention;
    attention.query = view(query_);
    attention.key = view(key_);
    attention.value = view(value_);
    if (query_form_ == 0) (queries_.has_gaps ? attention.seq_offsets_q : attention.cu_seqlens_q) = view(offsets_q_);
    if (key_form_ == 0) (keys_.has_gaps ? attention.seq_offsets_k : attention.cu_seqlens_k) = view(offsets_k_);
    if (has_map_) attention.kv_of = view(map_tensor_);
    if (has_output_offsets_) attention.output_offsets = view(output_offsets_);
    attention.zeroes_output = zeroes_output_;
    if (page_rows_ > 0) {
      attention.cu_seqlens_k = attention.seq_offsets_k = std::nullopt;
      attention.key = view(paged_key_);
      attention.value = view(paged_value_);
      attention.block_table = view(block_table_);
      attention.seqused_k = view(used_);
    }
    attention.activation = score_ ? Activation(score_->text(), {}, score_->names()) : Activation(function_.text);
    if (score_) {
      for (const DrawnTensor& tensor : score_->tensors()) {
        attention.parameters.push_back({tensor.name, view(tensor.data)});
      }
    }
    if (!default_scale_) attention.scale = scale_;
    attention.out_scale = out_scale_;
    if (out_scale_.kind == OutScale::Kind::per_batch) attention.out_scale = OutScale::of_batch(view(numbers_));
    if (out_scale_.kind == OutScale::Kind::per_row) attention.out_scale = OutScale::of_rows(view(numbers_));
    attention.mask = mask_;
    if (mask_expression_) {
      attention.mask_expression = MaskExpression(mask_expression_->text(), {}, mask_expression_->names());
      for (const DrawnTensor& tensor : mask_expression_->tensors()) {
        attention.mask_parameters.push_back({tensor.name, view(tensor.data)});
      }
    }
    attention.threads = threads_;
    attention.add_query = given_.adds_query;
    return attention;
  }

  Reference reference() {
    Reference reference;
    reference.query = dense(query_, heads_q_, head_dim_);
    reference.key = dense(key_, heads_k_, head_dim_);
    reference.value = dense(value_, heads_k_, head_dim_v_);
    reference.function = function_.value;
    reference.derivative = function_.derivative;
    if (score_) {
      reference.function_at = [score = score_](double s, const Place& place) { return score->value(s, place); };
      reference.derivative_at = [score = score_](double s, const Place& place) { return score->derivative(s, place); };
      reference.add_gradients_at = [score = score_](double s, const Place& place, double dp,
                                                    ReferenceGradients& gradients) {
        score->add_gradients(s, place, dp, gradients.tensors, gradients.squares);
      };
    }
    if (mask_expression_) {
      reference.keeps_at = [mask = mask_expression_](const Place& place) { return mask->keeps(place); };
    }
    reference.scale = scale_;
    reference.left = mask_.left;
    reference.right = mask_.right;
    reference.bottom_right = mask_.diagonal == Diagonal::bottom_right;
    reference.add_query = given_.adds_query;
    for (std::size_t b = 0; b < lengths_q_.size(); ++b) {
      Entry entry;
      entry.length_q = lengths_q_[b];
      entry.length_k = lengths_k_[b];
      entry.query_begin = queries_.begins[b];
      entry.key_begin = keys_.begins[map_[b]];
      entry.output_begin = output_begin(b);
      entry.out_scale = out_scale_of(b);
      entry.first_scale = query_form_ == 2 ? 0 : queries_.begins[b];
      reference.entries.push_back(entry);
    }
    reference.output_rows = output_rows_;
    if (out_scale_.kind == OutScale::Kind::per_row) reference.row_scale = values_of_numbers_;
    return reference;
  }

  /// Fresh memory, poisoned, for a result of the query's, the key's or the value's shape.
  Strided new_output() { return place(output_sizes(), false); }
  Strided new_grad_query() { return place(query_.sizes(), false); }
  Strided new_grad_key() { return place(key_.sizes(), false); }
  Strided new_grad_value() { return place(value_.sizes(), false); }

  /// dO, with NaN in the rows that belong to no sequence.
  Strided grad_output() {
    Strided grad = place(output_sizes(), true);
    fill_rows(grad, output_rows_of_sequences());
    return grad;
  }

  /// The tensors that the score reads, and fresh memory, poisoned, for their gradients.
  std::vector<DrawnTensor>& tensors() {
    static std::vector<DrawnTensor> none;
    return score_ ? score_->tensors() : none;
  }
  std::vector<Strided> new_grad_tensors() {
    std::vector<Strided> gradients;
    for (const DrawnTensor& tensor : tensors()) {
      const DType dtype = given_.on_cpu && chance(0.3) ? DType::float64 : DType::float32;
      gradients.push_back(Strided::contiguous(dtype, tensor.data.sizes()));
    }
    return gradients;
  }

  /// The rows of a result that belong to a sequence. The others are 0, or those of the tensor that is added.
  std::vector<bool> query_rows_of_sequences() const {
    std::vector<bool> rows(static_cast<std::size_t>(queries_.rows), query_form_ == 2);
    for (std::size_t b = 0; b < batch(); ++b) set_rows(rows, queries_.begins[b], lengths_q_[b]);
    return rows;
  }
  std::vector<bool> key_rows_of_sequences() const {
    std::vector<bool> rows(static_cast<std::size_t>(keys_.rows), key_form_ == 2);
    for (std::size_t b = 0; b < batch(); ++b) set_rows(rows, keys_.begins[map_[b]], lengths_k_[b]);
    return rows;
  }
  std::vector<bool> output_rows_of_sequences() const {
    std::vector<bool> rows(static_cast<std::size_t>(output_rows_));
    for (std::size_t b = 0; b < batch(); ++b) set_rows(rows, output_begin(b), lengths_q_[b]);
    return rows;
  }
  /// Whether the other rows of the output become 0. Otherwise they keep their contents.
  bool zeroes_output() const { return zeroes_output_; }
  bool has_batch_map() const { return has_map_; }
  bool is_forward_only() const { return given_.is_forward_only; }

  static Dense dense(Strided& tensor, int64_t heads, int64_t width) {
    std::vector<double> values = tensor.values();
    const int64_t row = heads * width;
    return {static_cast<int64_t>(values.size()) / row, heads, width, std::move(values)};
  }
  int64_t heads_q() const { return heads_q_; }
  int64_t heads_k() const { return heads_k_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t head_dim_v() const { return head_dim_v_; }

 private:
  std::size_t batch() const { return lengths_q_.size(); }
  bool is(DrawnLayout layout) const { return given_.layout == layout; }

  /// Between -1 and 1.
  double symmetric() { return std::uniform_real_distribution<double>(-1, 1)(random_); }
  int64_t uniform(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  /// The same for options that select kernels.
  std::mt19937_64& kinds() { return given_.kind ? kinds_ : random_; }
  int64_t kind(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(kinds()); }
  bool kind_chance(double probability) { return std::bernoulli_distribution(probability)(kinds()); }
  template <class Choice>
  Choice pick(std::initializer_list<Choice> choices) {
    return choices.begin()[uniform(0, static_cast<int64_t>(choices.size()) - 1)];
  }

  static int64_t sum_before(const std::vector<int64_t>& lengths, std::size_t count) {
    return std::accumulate(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(count), int64_t{0});
  }

  int64_t random_length() {
    if (chance(0.2)) return pick<int64_t>({0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129});
    if (given_.score) return chance(0.02) ? uniform(130, 300) : uniform(0, 50);  // their reference takes longer
    return chance(0.1) ? uniform(130, 300) : uniform(0, 90);
  }

  void choose() {
    dtype_ = pick({DType::float32, DType::float32, DType::float64, DType::bfloat16, DType::float16});
    dtype_ = given_.dtype.value_or(dtype_);
    choose_function();
    if (given_.score) {  // the number of heads selects the kernel of a list of functions
      heads_k_ = kind(1, 3);
      heads_q_ = heads_k_ * (kind(0, 2) == 2 ? 2 : 1);
    } else {
      heads_k_ = uniform(1, 3);
      heads_q_ = heads_k_ * pick<int64_t>({1, 1, 1, 2, 3, 5});
    }
    head_dim_ = pick<int64_t>({1, 7, 8, 13, 16, 24, 32, 40, 64, 64, 128, 200, 300});
    head_dim_ = given_.head_dim.value_or(head_dim_);
    head_dim_v_ = chance(0.5) ? head_dim_ : pick<int64_t>({1, 5, 8, 16, 33, 64, 72, 128});
    head_dim_v_ = given_.adds_query ? head_dim_ : given_.head_dim_v.value_or(head_dim_v_);
    constexpr std::array<int, 5> forms = {0, 0, 0, 1, 2};  // 0 jagged, 1 dense, 2 shared
    query_form_ = forms[static_cast<std::size_t>(kind(0, 4))];
    if (given_.adds_query) query_form_ %= 2;
    key_form_ = forms[static_cast<std::size_t>(kind(0, 4))];
    if (is(DrawnLayout::batch_map)) key_form_ = static_cast<int>(kind(0, 1));
    if (is(DrawnLayout::overlapping_keys) || is(DrawnLayout::pages)) key_form_ = 0;
    int64_t batch = query_form_ == 2 && key_form_ == 2 ? 1 : uniform(query_form_ == 1 || key_form_ == 1 ? 1 : 0, 5);
    if (is(DrawnLayout::output_offsets) && query_form_ == 1) query_form_ = 0;
    if (!is(DrawnLayout::any)) batch = query_form_ == 2 && key_form_ == 2 ? 1 : uniform(2, 6);
    const int64_t times = given_.streams_queries ? 13 : 1;  // odd: ends of sequences lie anywhere in a tile
    shared_q_ = times * random_length();
    shared_k_ = random_length();
    lengths_q_ = random_lengths(query_form_, batch, shared_q_, times);
    has_map_ =
        is(DrawnLayout::batch_map) || (key_form_ != 2 && batch > 0 && !is(DrawnLayout::pages) && kind_chance(0.2));
    const int64_t sequences = has_map_ ? uniform(1, 4) : batch;
    std::vector<int64_t> lengths_of_sequences = random_lengths(key_form_, sequences, shared_k_);
    const bool may_be_alike = query_form_ == 0 && key_form_ == 0 && !given_.streams_queries && !has_map_;
    if (may_be_alike && chance(0.5)) lengths_of_sequences = lengths_q_;
    for (int64_t b = 0; b < batch; ++b) {
      map_.push_back(static_cast<std::size_t>(has_map_ ? uniform(0, sequences - 1) : b));
      lengths_k_.push_back(lengths_of_sequences[map_.back()]);
    }
    queries_ = place_sequences(query_form_, lengths_q_, shared_q_, 0.0);
    const double overlap = is(DrawnLayout::overlapping_keys) ? 1.0 : 0.5;
    keys_ = place_sequences(key_form_, lengths_of_sequences, shared_k_, overlap);
    place_output();
    choose_mask();
    choose_scales(batch);
    threads_ = static_cast<int>(uniform(0, 3));
    description_ = fmt::format(
        "{} {} forms {}/{} heads {}/{} widths {}/{} q [{}] k [{}] left {} right {} {} scale {} out_scale {} threads {}",
        name(dtype_), function_.text, query_form_, key_form_, heads_q_, heads_k_, head_dim_, head_dim_v_,
        fmt::join(lengths_q_, ","), fmt::join(lengths_k_, ","), mask_.left, mask_.right,
        mask_.diagonal == Diagonal::bottom_right ? "bottom right" : "upper left", scale_,
        static_cast<int>(out_scale_.kind), threads_);
    if (queries_.has_gaps) description_ += fmt::format(" queries at [{}]", fmt::join(queries_.begins, ","));
    if (keys_.has_gaps) description_ += fmt::format(" keys at [{}]", fmt::join(keys_.begins, ","));
    if (keys_.overlap) description_ += " which overlap";
    if (has_map_) description_ += fmt::format(" kv_of [{}]", fmt::join(map_, ","));
    if (has_output_offsets_) description_ += fmt::format(" output at [{}]", fmt::join(outputs_.begins, ","));
    if (!zeroes_output_) description_ += " not zeroed";
    if (given_.adds_query) description_ += " add_query";
  }

  ScoreSizes sizes() const {
    const auto longest = [](const std::vector<int64_t>& lengths) {
      return lengths.empty() ? int64_t{0} : *std::max_element(lengths.begin(), lengths.end());
    };
    return {static_cast<int64_t>(batch()), heads_q_,      longest(lengths_q_),
            longest(lengths_k_),           queries_.rows, keys_.rows};
  }

  void choose_mask_expression() {
    mask_ = Mask::all();
    mask_expression_ = std::make_shared<RandomMask>(*given_.mask, random_, sizes());
    description_ += " mask " + mask_expression_->text();
  }

  void choose_score() {
    const DrawnFunction function = {function_.text, [f = function_](Dual s) {
                                      return Dual{f.value(s.value), f.derivative(s.value) * s.slope};
                                    }};
    score_ = std::make_shared<RandomScore>(*given_.score, random_(), sizes(), function, given_.on_cpu);
    description_ += " score " + score_->text();
  }

  void choose_function() {
    const std::vector<NamedFunction>& all = smooth_functions();
    function_ = all[static_cast<std::size_t>(uniform(0, static_cast<int64_t>(all.size()) - 1))];
    for (const NamedFunction& function : all) {
      if (function.text == given_.function) function_ = function;
    }
    if (const auto& drawn = given_.drawn) {
      function_ = {drawn->text, [f = *drawn](double s) { return f.value(s); },
                   [f = *drawn](double s) { return f.derivative(s); }};
    }
  }

  /// `same` is the length of every entry where the operand is not jagged; others are drawn, `times` as long.
  std::vector<int64_t> random_lengths(int form, int64_t batch, int64_t same, int64_t times = 1) {
    std::vector<int64_t> lengths(static_cast<std::size_t>(batch), same);
    if (form == 0) {
      for (int64_t& length : lengths) length = times * random_length();
    }
    return lengths;
  }

  /// The place of the sequences of a side in its operand.
  struct Placement {
    std::vector<int64_t> begins;
    std::vector<int64_t> lengths;
    int64_t rows = 0;
    bool has_gaps = false;  ///< sequences have a begin and an end, otherwise cumulative lengths
    bool overlap = false;   ///< sequences may overlap
  };

  /// A jagged operand may have rows before the first sequence and after the last one, and sequences may be anywhere.
  /// `overlap` is the probability that sequences anywhere overlap.
  Placement place_sequences(int form, const std::vector<int64_t>& lengths, int64_t shared, double overlap) {
    Placement placement;
    placement.lengths = lengths;
    placement.begins.resize(lengths.size());
    if (form == 2) {
      placement.rows = shared;
      return placement;
    }
    placement.has_gaps = form == 0 && (overlap == 1.0 || kind_chance(0.4));
    int64_t at = form == 0 && chance(0.2) ? pick<int64_t>({1, 7, 64, 130}) : 0;
    std::vector<std::size_t> order(lengths.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (placement.has_gaps && chance(0.5)) std::shuffle(order.begin(), order.end(), random_);
    placement.overlap = placement.has_gaps && kind_chance(overlap);
    for (const std::size_t b : order) {
      placement.begins[b] = at;
      placement.rows = std::max(placement.rows, at + lengths[b]);
      at += placement.overlap ? uniform(0, lengths[b]) : lengths[b];
      if (placement.has_gaps && chance(0.5)) at += pick<int64_t>({1, 5, 64});
    }
    placement.rows = std::max(placement.rows, at) + (form == 0 && chance(0.3) ? uniform(1, 9) : 0);
    return placement;
  }

  void place_output() {
    const bool may_have_offsets = query_form_ != 1 && batch() > 0 && !given_.adds_query;
    has_output_offsets_ = may_have_offsets && (is(DrawnLayout::output_offsets) || kind_chance(0.1));
    zeroes_output_ = given_.adds_query || !((has_output_offsets_ || queries_.has_gaps) && kind_chance(0.3));
    output_rows_ = query_form_ == 2 ? static_cast<int64_t>(batch()) * shared_q_ : queries_.rows;
    if (!has_output_offsets_) return;
    outputs_ = place_sequences(0, lengths_q_, 0, 0.0);
    output_rows_ = outputs_.rows;
  }
  int64_t output_begin(std::size_t b) const {
    if (has_output_offsets_) return outputs_.begins[b];
    return query_form_ == 2 ? sum_before(lengths_q_, b) : queries_.begins[b];
  }

  static void set_rows(std::vector<bool>& rows, int64_t begin, int64_t count) {
    std::fill_n(rows.begin() + static_cast<std::ptrdiff_t>(begin), count, true);
  }

  /// Random numbers in these rows. The other rows stay NaN.
  void fill_rows(Strided& tensor, const std::vector<bool>& rows) {
    tensor.fill_normal(random_);
    std::size_t elements = 1, element = 0;
    for (const int64_t size : tensor.sizes()) elements *= static_cast<std::size_t>(size);
    if (elements == 0) return;
    const std::size_t of_row = elements / rows.size();
    tensor.for_each([&](std::byte* at) {
      if (!rows[element++ / of_row]) std::fill_n(at, size_in_bytes(tensor.dtype()), std::byte{0xff});
    });
  }

  void choose_mask() {
    constexpr int64_t largest = std::numeric_limits<int64_t>::max();
    const auto huge = [&] { return chance(0.5) ? largest - uniform(0, 100) : largest >> uniform(0, 40); };
    const auto side = [&] { return chance(0.3) ? int64_t{-1} : chance(0.2) ? huge() : uniform(0, 100); };
    if (given_.streams_queries || chance(0.3))
      mask_ = Mask::all();
    else if (chance(0.4))
      mask_ = Mask::causal();
    else
      mask_ = Mask::window(side(), side());
    mask_.diagonal = pick({Diagonal::bottom_right, Diagonal::upper_left});
  }

  void choose_scales(int64_t batch) {
    default_scale_ = chance(0.5);
    const double root = std::sqrt(static_cast<double>(head_dim_));
    // The standard deviation of the scores is .2 to 5.
    const auto any = [&] { return std::exp(symmetric() * std::log(5.0)) / root * pick({1, 1, 1, -1}); };
    scale_ = default_scale_ ? 1 / root : given_.draws_scale ? any() : pick({0.125, -0.3, 0.05});
    const int64_t form = kind(0, given_.adds_query ? 4 : 5);
    if (form == 1) out_scale_ = OutScale::of(0.37);
    if (form == 2) out_scale_ = OutScale::per_query();
    if (form == 3) out_scale_ = OutScale::per_key();
    if (form == 4) {
      out_scale_.kind = OutScale::Kind::per_batch;
      choose_numbers({batch});
    }
    if (form == 5) {
      out_scale_.kind = OutScale::Kind::per_row;
      choose_numbers(query_form_ == 1 ? std::vector<int64_t>{batch, lengths_q_.at(0)}
                                      : std::vector<int64_t>{query_form_ == 2 ? shared_q_ : queries_.rows});
    }
  }

  void choose_numbers(const std::vector<int64_t>& sizes) {
    const bool may_be_double = given_.on_cpu || out_scale_.kind == OutScale::Kind::per_batch;
    numbers_ = Strided::contiguous(may_be_double ? pick({DType::float32, DType::float64}) : DType::float32, sizes);
    numbers_.fill_normal(random_);
    values_of_numbers_ = numbers_.values();
  }

  double out_scale_of(std::size_t b) const {
    auto reciprocal = [](int64_t length) { return length > 0 ? 1 / static_cast<double>(length) : 0.0; };
    switch (out_scale_.kind) {
      case OutScale::Kind::number:
        return out_scale_.number;
      case OutScale::Kind::reciprocal_length_q:
        return reciprocal(lengths_q_[b]);
      case OutScale::Kind::reciprocal_length_k:
        return reciprocal(lengths_k_[b]);
      case OutScale::Kind::per_batch:
        return values_of_numbers_[b];
      case OutScale::Kind::per_row:
        break;
    }
    return 1;
  }

  std::vector<int64_t> sizes_of(int form, int64_t rows, const std::vector<int64_t>& lengths, int64_t heads,
                                int64_t width) const {
    if (form == 1) return {static_cast<int64_t>(lengths.size()), lengths.at(0), heads, width};
    return {rows, heads, width};
  }

  std::vector<int64_t> output_sizes() {
    if (query_form_ == 2 && !has_output_offsets_ && chance(0.5))
      return {static_cast<int64_t>(batch()), shared_q_, heads_q_, head_dim_v_};
    return sizes_of(query_form_, output_rows_, lengths_q_, heads_q_, head_dim_v_);
  }

  /// Memory with the outer dimensions in any order and gaps between; inputs may run backwards.
  Strided place(const std::vector<int64_t>& sizes, bool input) {
    if (chance(0.3)) return Strided::contiguous(dtype_, sizes);
    const std::size_t outer = sizes.size() - 1;
    std::vector<std::size_t> order(outer);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<int64_t> strides(sizes.size(), 1);
    int64_t extent = sizes.back() + given_.gap_unit * uniform(0, 3);
    int64_t first = 0;
    for (std::size_t dimension : order) {
      strides[dimension] = extent;
      const int64_t steps = std::max<int64_t>(sizes[dimension] - 1, 0);
      if (input && chance(0.1)) {
        first += steps * extent;
        strides[dimension] = -extent;
      }
      extent += steps * extent + given_.gap_unit * uniform(0, 5);
    }
    return {dtype_, sizes, strides, first, extent};
  }

  void lay_out() {
    query_ = place(sizes_of(query_form_, queries_.rows, lengths_q_, heads_q_, head_dim_), true);
    key_ = place(sizes_of(key_form_, keys_.rows, keys_.lengths, heads_k_, head_dim_), true);
    value_ = place(sizes_of(key_form_, keys_.rows, keys_.lengths, heads_k_, head_dim_v_), true);
    offsets_q_ = offsets(queries_);
    offsets_k_ = offsets(keys_);
    output_offsets_ = integers(outputs_.begins, {static_cast<int64_t>(outputs_.begins.size())});
    map_tensor_ = integers({map_.begin(), map_.end()}, {static_cast<int64_t>(map_.size())});
  }

  /// The keys of each entry in pages in random order. Other pages, and the rows after the last key, are NaN.
  void divide_into_pages() {
    page_rows_ = pick<int64_t>({16, 32, 48, 64, 256});
    int64_t columns = uniform(0, 2), pages = uniform(1, 3);
    for (const int64_t length : lengths_k_) {
      columns = std::max(columns, (length + page_rows_ - 1) / page_rows_);
      pages += (length + page_rows_ - 1) / page_rows_;
    }
    std::vector<int64_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    // No page has the number in columns after the last key of an entry.
    std::vector<int64_t> table(lengths_k_.size() * static_cast<std::size_t>(columns), 2 * pages);
    std::vector<int64_t> rows;  // of the packed operand, for each row of the pages
    rows.resize(static_cast<std::size_t>(pages * page_rows_), -1);
    std::size_t next = 0;
    for (std::size_t b = 0; b < lengths_k_.size(); ++b) {
      for (int64_t row = 0; row < lengths_k_[b]; ++row) {
        if (row % page_rows_ == 0) {
          table[b * static_cast<std::size_t>(columns) + static_cast<std::size_t>(row / page_rows_)] = order[next++];
        }
        rows[static_cast<std::size_t>(order[next - 1] * page_rows_ + row % page_rows_)] = keys_.begins[b] + row;
      }
    }
    const bool has_any_strides = chance(0.3);
    paged_key_ = in_pages(key_, rows, pages, head_dim_, has_any_strides);
    paged_value_ = in_pages(value_, rows, pages, head_dim_v_, has_any_strides);
    block_table_ = integers(table, {static_cast<int64_t>(lengths_k_.size()), columns});
    used_ = integers(lengths_k_, {static_cast<int64_t>(lengths_k_.size())});
    description_ += fmt::format(" pages of {}: [{}]", page_rows_, fmt::join(table, ","));
  }

  /// Pages begin a whole number of rows apart, which TMA needs, or have any strides.
  Strided place_pages(int64_t pages, int64_t width, bool has_any_strides) {
    if (has_any_strides) return place({pages, page_rows_, heads_k_, width}, true);
    const int64_t rows_apart = page_rows_ + pick<int64_t>({0, 0, 1, page_rows_});
    const int64_t row = heads_k_ * width + given_.gap_unit * uniform(0, 3);
    const bool has_heads_outside = chance(0.3);  // (pages, heads, rows of a page, head_dim)
    if (has_heads_outside) {
      const int64_t apart = width * (page_rows_ * heads_k_);
      return {dtype_, {pages, page_rows_, heads_k_, width}, {apart, width, page_rows_ * width, 1}, 0, pages * apart};
    }
    return {
        dtype_, {pages, page_rows_, heads_k_, width}, {rows_apart * row, row, width, 1}, 0, pages * rows_apart * row};
  }

  Strided in_pages(Strided& packed, const std::vector<int64_t>& rows, int64_t pages, int64_t width,
                   bool has_any_strides) {
    Strided result = place_pages(pages, width, has_any_strides);
    const Dense values = dense(packed, heads_k_, width);
    const int64_t elements = heads_k_ * width;
    int64_t element = 0;
    result.for_each([&](std::byte* at) {
      const int64_t row = rows[static_cast<std::size_t>(element / elements)];
      if (row >= 0)
        from_double(dtype_, values.values[static_cast<std::size_t>(row * elements + element % elements)], at);
      ++element;
    });
    return result;
  }

  Strided integers(const std::vector<int64_t>& numbers, const std::vector<int64_t>& sizes) {
    const bool wide = chance(0.5);
    Strided tensor = Strided::contiguous(wide ? DType::int64 : DType::int32, sizes);
    std::size_t i = 0;
    tensor.for_each([&](std::byte* at) {
      const int64_t number = numbers[i++];
      const auto narrow = static_cast<std::int32_t>(number);
      wide ? std::memcpy(at, &number, 8) : std::memcpy(at, &narrow, 4);
    });
    return tensor;
  }

  /// The begin and the end of each sequence, or cumulative lengths.
  Strided offsets(const Placement& placement) {
    std::vector<int64_t> numbers;
    for (std::size_t b = 0; b < placement.begins.size(); ++b) {
      numbers.push_back(placement.begins[b]);
      const bool is_last = b + 1 == placement.begins.size();
      if (placement.has_gaps || is_last) numbers.push_back(placement.begins[b] + placement.lengths[b]);
    }
    const auto batch = static_cast<int64_t>(placement.begins.size());
    if (placement.has_gaps) return integers(numbers, {batch, 2});
    if (batch == 0) numbers.push_back(0);
    return integers(numbers, {batch + 1});
  }

  /// All gradients in half of the problems, else one or two of them.
  void choose_wanted() {
    if (given_.is_forward_only) {
      wanted_ = {false, false, false};
      return;
    }
    if (kind_chance(0.5)) return;
    const int64_t bits = kind(1, 6);
    wanted_ = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
    description_ += fmt::format(" wanted dQ {} dK {} dV {}", wanted_.query, wanted_.key, wanted_.value);
  }

  void fill() {
    fill_rows(query_, query_rows_of_sequences());
    fill_rows(key_, key_rows_of_sequences());
    fill_rows(value_, key_rows_of_sequences());
  }

  std::mt19937_64 random_;
  std::mt19937_64 kinds_;  ///< of the options that select kernels
  Given given_;
  DType dtype_ = DType::float32;
  NamedFunction function_ = {};
  std::shared_ptr<RandomScore> score_;
  std::shared_ptr<RandomMask> mask_expression_;
  int64_t heads_q_ = 1, heads_k_ = 1, head_dim_ = 1, head_dim_v_ = 1;
  int query_form_ = 0, key_form_ = 0;
  std::vector<int64_t> lengths_q_, lengths_k_;
  int64_t shared_q_ = 0, shared_k_ = 0;
  Placement queries_, keys_;
  Placement outputs_;  ///< with output offsets
  bool has_output_offsets_ = false, zeroes_output_ = true;
  Strided output_offsets_;
  int64_t output_rows_ = 0;
  bool has_map_ = false;
  std::vector<std::size_t> map_;  ///< the sequence of keys of each batch entry
  Strided map_tensor_;
  int64_t page_rows_ = 0;  ///< 0: no pages
  Strided paged_key_, paged_value_, block_table_, used_;
  Mask mask_;
  WantedGradients wanted_;
  bool default_scale_ = true;
  double scale_ = 1;
  OutScale out_scale_;
  Strided numbers_;  // of out_scale
  std::vector<double> values_of_numbers_;
  int threads_ = 0;
  Strided query_, key_, value_, offsets_q_, offsets_k_;
  std::string description_;
};

}  // namespace gdpa::test
