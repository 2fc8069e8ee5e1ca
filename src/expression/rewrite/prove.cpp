// See prove.h.
#include "expression/rewrite/prove.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "expression/lower.h"
#include "expression/rewrite/interval.h"

namespace gdpa::activation {

namespace {

/// Maps the numbers of fp32 or fp64 to integers in the same order. The middle of two such integers has about the mean
/// exponent.
template <class Real>
class Ordered {
 public:
  using Bits = std::conditional_t<sizeof(Real) == 4, std::int32_t, std::int64_t>;

  static Bits from(Real number) {
    const auto bits = std::bit_cast<Bits>(number);
    return bits < 0 ? std::numeric_limits<Bits>::min() - bits : bits;
  }
  static Real to(Bits ordered) {
    return std::bit_cast<Real>(ordered < 0 ? std::numeric_limits<Bits>::min() - ordered : ordered);
  }
};

/// Returns whether a statement holds on [from, to]. A piece on which `holds_on` does not prove it is divided into
/// halves, unless `fails_at` an end.
template <class Real, class Fails, class Holds>
bool holds_for_all(Real from, Real to, const Fails& fails_at, const Holds& holds_on) {
  using Order = Ordered<Real>;
  constexpr int most_pieces = 4096;
  std::vector<std::pair<typename Order::Bits, typename Order::Bits>> left = {{Order::from(from), Order::from(to)}};
  for (int pieces = 0; !left.empty(); ++pieces) {
    if (pieces == most_pieces) return false;
    const auto [low, high] = left.back();
    left.pop_back();
    if (holds_on(Interval<Real>{Order::to(low), Order::to(high)})) continue;
    if (low == high || fails_at(Order::to(low)) || fails_at(Order::to(high))) return false;
    using Distance = std::make_unsigned_t<typename Order::Bits>;
    const auto distance = static_cast<Distance>(static_cast<Distance>(high) - static_cast<Distance>(low));
    const auto middle = static_cast<typename Order::Bits>(low + static_cast<typename Order::Bits>(distance / 2));
    left.emplace_back(low, middle);
    left.emplace_back(middle + 1, high);
  }
  return true;
}

/// Finds steps of a program that give equal numbers for every score of a piece: the same step, equal constants, a
/// minimum or maximum that always selects the same operand and this operand, and the same operation on equal operands.
template <class Real>
class Equality {
 public:
  Equality(const Program& program, const Interval<Real>& scores)
      : program_(program), ranges_(enclose_steps(program, scores)) {
    for (std::uint16_t i = 0; i < program.steps.size(); ++i) stands_for_.push_back(representative(i));
  }

  bool holds(std::uint16_t a, std::uint16_t b) {
    a = stands_for_[a];
    b = stands_for_[b];
    if (a == b) return true;
    const Interval<Real>&x = ranges_[a], &y = ranges_[b];
    if (x.low == x.high && y.low == y.high && x.low == y.low && !x.may_be_nan && !y.may_be_nan) return true;
    const std::uint32_t pair = std::uint32_t{a} << 16 | b;
    if (const auto known = known_.find(pair); known != known_.end()) return known->second;
    const bool is_same = have_equal_operands(program_.steps[a], program_.steps[b]);
    known_[pair] = is_same;
    return is_same;
  }

  const Interval<Real>& range(std::uint16_t step) const { return ranges_[step]; }

 private:
  bool have_equal_operands(const Step& one, const Step& other) {
    const int operands = operand_count(one.operation);
    if (one.operation != other.operation || operands == 0) return false;
    const bool are_in_order =
        holds(one.a, other.a) && (operands < 2 || holds(one.b, other.b)) && (operands < 3 || holds(one.c, other.c));
    return are_in_order || (commutes(one.operation) && holds(one.a, other.b) && holds(one.b, other.a));
  }

  std::uint16_t representative(std::uint16_t index) const {
    const Step& step = program_.steps[index];
    if (!is_extremum(step.operation)) return index;
    const Interval<Real>&a = ranges_[step.a], &b = ranges_[step.b];
    if (a.may_be_nan || b.may_be_nan) return index;
    const bool is_minimum = step.operation == Operation::minimum;
    if (is_minimum ? a.high <= b.low : a.low >= b.high) return stands_for_[step.a];
    if (is_minimum ? b.high <= a.low : b.low >= a.high) return stands_for_[step.b];
    return index;
  }

  const Program& program_;
  std::vector<Interval<Real>> ranges_;
  std::vector<std::uint16_t> stands_for_;
  std::unordered_map<std::uint32_t, bool> known_;
};

constexpr float infinity_fp32 = std::numeric_limits<float>::infinity();

bool is_same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

}  // namespace

bool are_equal(const Program& program, double from, double to) {
  const auto differs_at = [&](double score) {
    const std::vector<double> results = evaluate(program, score);
    return !(results[0] == results[1]);  // of NaN too
  };
  return holds_for_all<double>(from, to, differs_at, [&](const Interval<double>& piece) {
    Equality<double> equality(program, piece);
    return !equality.range(program.results[0]).may_be_nan && equality.holds(program.results[0], program.results[1]);
  });
}

bool is_constant(const Program& program, double from, double to, double number) {
  const auto differs_at = [&](double score) { return !(evaluate(program, score)[0] == number); };
  return holds_for_all<double>(from, to, differs_at, [&](const Interval<double>& piece) {
    const Interval<double> range = enclose(program, piece)[0];
    return range.low == number && range.high == number && !range.may_be_nan;
  });
}

bool is_level_in_fp32(const Program& program, Range scores) {
  const auto is_level_beyond = [&](double end, float last, float beyond) {
    const auto first = static_cast<float>(end);
    const float level = evaluate_in_fp32(program, first)[0];
    const auto differs_at = [&](float score) { return !is_same_bits(evaluate_in_fp32(program, score)[0], level); };
    if (differs_at(beyond) && !std::isnan(evaluate_in_fp32(program, beyond)[0])) return false;
    return holds_for_all<float>(
        std::fmin(first, last), std::fmax(first, last), differs_at, [&](const Interval<float>& piece) {
          const Interval<float> range = enclose(program, piece)[0];
          return is_same_bits(range.low, level) && is_same_bits(range.high, level) && !range.may_be_nan;
        });
  };
  return (scores.low == -infinity || is_level_beyond(scores.low, -greatest_fp32, -infinity_fp32)) &&
         (scores.high == infinity || is_level_beyond(scores.high, greatest_fp32, infinity_fp32));
}

bool is_same_where_finite(const Program& program) {
  const std::size_t half = program.results.size() / 2;
  const auto is_wrong_at = [&](float score) {
    const std::vector<float> results = evaluate_in_fp32(program, score);
    for (std::size_t i = 0; i < half; ++i) {
      if (std::isfinite(results[half + i]) && results[half + i] != results[i]) return true;
    }
    return false;
  };
  if (is_wrong_at(infinity_fp32) || is_wrong_at(-infinity_fp32)) return false;
  return holds_for_all<float>(-greatest_fp32, greatest_fp32, is_wrong_at, [&](const Interval<float>& piece) {
    Equality<float> equality(program, piece);
    for (std::size_t i = 0; i < half; ++i) {
      const std::uint16_t expected = program.results[i], got = program.results[half + i];
      // A result of 0, or NaN from 0 times infinity, is right where 0 is expected.
      const Interval<float>&x = equality.range(expected), &y = equality.range(got);
      const bool is_constant = x.low == x.high && y.low == y.high && x.low == y.low && !x.may_be_nan;
      if (!is_constant && !equality.holds(expected, got)) return false;
    }
    return true;
  });
}

}  // namespace gdpa::activation
