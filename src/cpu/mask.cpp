// See mask.h.
#include "cpu/mask.h"

#include <algorithm>
#include <span>

#include "plan/cpu_units.h"

namespace gdpa::cpu {
namespace {

using activation::Interval;

const activation::Function& constant_function() {
  static const Activation constant("0");
  return constant.function();
}

Range columns_of(Range valid, Range keys) {
  if (valid.empty()) return {};
  const int64_t begin = (valid.begin - keys.begin) / plan::cpu_vector * plan::cpu_vector;
  return {begin, begin + round_up(valid.end - keys.begin - begin, plan::cpu_vector)};
}

}  // namespace

MaskPlan::MaskPlan(const activation::Function* expression, const Params& params)
    : expression_(expression), inputs_(expression != nullptr ? *expression : constant_function()) {
  if (expression == nullptr) return;
  const auto program = [&](int64_t) -> const activation::Program& { return expression->value(); };
  evaluators_.emplace(*expression, params.mask_parameters, params.heads_q, program);
}

template <class Compute>
TileMask<Compute>::TileMask(const MaskPlan& plan, const Params& params)
    : plan_(plan), params_(params), inputs_(plan.inputs(), params, params.mask_parameters) {}

template <class Compute>
void TileMask<Compute>::enter(int64_t b) {
  tile_ = ScoreTile();
  tile_.b = b;
  length_q_ = params_.queries.size(b);
  length_k_ = params_.keys.size(b);
}

template <class Compute>
Range TileMask<Compute>::keys(Range queries) const {
  return params_.mask.keys(queries, length_q_, length_k_);
}

template <class Compute>
Range TileMask<Compute>::queries(Range keys) const {
  return params_.mask.queries(keys, length_q_, length_k_);
}

template <class Compute>
Range TileMask<Compute>::enter_tile(int64_t head, Range queries, Range keys) {
  const auto is_same = [](Range a, Range b) { return a.begin == b.begin && a.end == b.end; };
  const int64_t of_head = plan_.is_expression() && plan_.evaluators().differ() ? head : 0;
  if (is_same(tile_.queries, queries) && is_same(tile_.keys, keys) && tile_.head == of_head) return columns_;
  tile_.head = of_head;
  tile_.queries = queries;
  tile_.keys = keys;
  if (plan_.is_expression()) {
    classify();
  } else {
    columns_ = columns_of(plan::intersection(this->keys(queries), keys), keys);
  }
  return columns_;
}

/// Intervals decide most tiles. The scores of the others are evaluated.
template <class Compute>
void TileMask<Compute>::classify() {
  inputs_.enclose(tile_, bounds_);
  const Interval<double> condition = activation::enclose_outward(plan_.expression().value(), bounds_);
  keeps_all_ = condition.low == 1;
  if (keeps_all_) {
    columns_ = columns_of(tile_.keys, tile_.keys);
  } else if (condition.high == 0) {
    columns_ = {};
  } else {
    evaluate();
  }
}

template <class Compute>
void TileMask<Compute>::evaluate() {
  const int64_t rows = tile_.queries.size(), keys = tile_.keys.size();
  truth_.resize(static_cast<std::size_t>(rows * keys));
  inputs_.fill(tile_);
  double* const truth = truth_.data();
  plan_.evaluators().of(tile_.head).evaluate(truth, rows * keys, std::span<double* const>(&truth, 1), inputs_.arrays());
  Range valid{keys, 0};
  keeps_all_ = true;
  for (int64_t row = 0; row < rows; ++row) {
    const double* const begin = truth + row * keys;
    const double* const end = begin + keys;
    const auto is_valid = [](double number) { return number != 0; };
    const double* const first = std::find_if(begin, end, is_valid);
    keeps_all_ = keeps_all_ && std::all_of(begin, end, is_valid);
    if (first == end) continue;
    const double* last = end;
    while (!is_valid(last[-1])) --last;
    valid.begin = std::min<int64_t>(valid.begin, first - begin);
    valid.end = std::max<int64_t>(valid.end, last - begin);
  }
  columns_ =
      valid.empty() ? Range{} : columns_of({tile_.keys.begin + valid.begin, tile_.keys.begin + valid.end}, tile_.keys);
  if (keeps_all_) return;
  valid_.assign(static_cast<std::size_t>(rows * columns_.size()), Compute{0});
  const int64_t count = std::min(columns_.size(), keys - columns_.begin);
  for (int64_t row = 0; row < rows; ++row) {
    std::transform(truth + row * keys + columns_.begin, truth + row * keys + columns_.begin + count,
                   valid_.begin() + row * columns_.size(), [](double number) { return static_cast<Compute>(number); });
  }
}

template <class Compute>
void TileMask<Compute>::clear_masked(Compute* tile) const {
  const Range& queries = tile_.queries;
  const Range covered{tile_.keys.begin + columns_.begin, tile_.keys.begin + columns_.end};
  if (plan_.is_expression() && !keeps_all_) {
    const Compute* const valid = valid_.data();
    const int64_t count = queries.size() * columns_.size();
    for (int64_t i = 0; i < count; ++i) tile[i] = valid[i] != 0 ? tile[i] : Compute{0};
    return;
  }
  const bool is_full = params_.mask.is_full(queries, covered, length_q_, length_k_);
  if (is_full && covered.end <= tile_.keys.end) return;
  for (int64_t query = queries.begin; query < queries.end; ++query, tile += columns_.size()) {
    const Range valid = plan::intersection(keys({query, query + 1}), plan::intersection(covered, tile_.keys));
    const int64_t begin = valid.empty() ? columns_.size() : valid.begin - covered.begin;
    const int64_t end = valid.empty() ? columns_.size() : valid.end - covered.begin;
    std::fill(tile, tile + begin, Compute{0});
    std::fill(tile + end, tile + columns_.size(), Compute{0});
  }
}

template <class Compute>
bool TileMask<Compute>::keeps(int64_t query, int64_t key) const {
  if (!plan_.is_expression()) {
    const Range valid = keys({query, query + 1});
    return valid.begin <= key && key < valid.end;
  }
  const int64_t column = key - tile_.keys.begin - columns_.begin;
  if (key >= tile_.keys.end || column < 0 || column >= columns_.size()) return false;
  return keeps_all_ || valid_[static_cast<std::size_t>((query - tile_.queries.begin) * columns_.size() + column)] != 0;
}

template <class Compute>
int64_t TileMask<Compute>::kept_scores() const {
  if (columns_.empty()) return 0;
  if (keeps_all_) return tile_.queries.size() * tile_.keys.size();
  return std::count_if(valid_.begin(), valid_.end(), [](Compute number) { return number != 0; });
}

template class TileMask<float>;
template class TileMask<double>;

double kept_scores(const activation::Function& expression, const Params& params) {
  constexpr int64_t step = 128;
  const MaskPlan plan(&expression, params);
  TileMask<float> mask(plan, params);
  int64_t count = 0;
  for (int64_t b = 0; b < params.batch; ++b) {
    mask.enter(b);
    plan::for_each_range({0, params.queries.size(b)}, step, [&](Range queries) {
      plan::for_each_range({0, params.keys.size(b)}, step, [&](Range keys) {
        for (int64_t head = 0; head < params.heads_q; ++head) {
          mask.enter_tile(head, queries, keys);
          count += mask.kept_scores();
        }
      });
    });
  }
  return static_cast<double>(count);
}

}  // namespace gdpa::cpu
