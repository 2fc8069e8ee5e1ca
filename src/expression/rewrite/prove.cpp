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

enum class Verdict : std::uint8_t { holds, fails, unknown };

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

/// Returns whether `check` holds on [from, to]. A piece with an unknown verdict is divided into halves.
template <class Real, class Check>
bool holds_for_all(Real from, Real to, const Check& check) {
  using Order = Ordered<Real>;
  constexpr int most_pieces = 4096;
  std::vector<std::pair<typename Order::Bits, typename Order::Bits>> left = {{Order::from(from), Order::from(to)}};
  for (int pieces = 0; !left.empty(); ++pieces) {
    if (pieces == most_pieces) return false;
    const auto [low, high] = left.back();
    left.pop_back();
    const Verdict verdict = check(Interval<Real>{Order::to(low), Order::to(high)});
    if (verdict == Verdict::holds) continue;
    if (verdict == Verdict::fails || low == high) return false;
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
    if (one.operation != other.operation) return false;
    switch (operand_count(one.operation)) {
      case 0:
        return false;
      case 1:
        return holds(one.a, other.a);
      case 2:
        return (holds(one.a, other.a) && holds(one.b, other.b)) ||
               (commutes(one.operation) && holds(one.a, other.b) && holds(one.b, other.a));
      default:
        return holds(one.a, other.a) && holds(one.b, other.b) && holds(one.c, other.c);
    }
  }

  std::uint16_t representative(std::uint16_t index) const {
    const Step& step = program_.steps[index];
    if (step.operation != Operation::minimum && step.operation != Operation::maximum) return index;
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
  return holds_for_all<double>(from, to, [&](const Interval<double>& piece) {
    if (differs_at(piece.low) || differs_at(piece.high)) return Verdict::fails;
    Equality<double> equality(program, piece);
    const bool is_number = !equality.range(program.results[0]).may_be_nan;
    return is_number && equality.holds(program.results[0], program.results[1]) ? Verdict::holds : Verdict::unknown;
  });
}

bool is_constant(const Program& program, double from, double to, double number) {
  return holds_for_all<double>(from, to, [&](const Interval<double>& piece) {
    const Interval<double> range = enclose(program, piece)[0];
    if (range.low == number && range.high == number && !range.may_be_nan) return Verdict::holds;
    const bool fails = !(evaluate(program, piece.low)[0] == number) || !(evaluate(program, piece.high)[0] == number);
    return fails ? Verdict::fails : Verdict::unknown;
  });
}

bool is_level_in_fp32(const Program& program, Range scores) {
  const auto is_level_beyond = [&](double end, float last, float beyond) {
    const auto value = [&](float score) { return evaluate_in_fp32(program, score)[0]; };
    const float level = value(static_cast<float>(end));
    const float at_infinity = value(beyond);
    if (!std::isnan(at_infinity) && !is_same_bits(at_infinity, level)) return false;
    const auto first = static_cast<float>(end);
    return holds_for_all<float>(std::fmin(first, last), std::fmax(first, last), [&](const Interval<float>& piece) {
      const Interval<float> range = enclose(program, piece)[0];
      const bool holds = is_same_bits(range.low, level) && is_same_bits(range.high, level) && !range.may_be_nan;
      if (holds) return Verdict::holds;
      const bool fails = !is_same_bits(value(piece.low), level) || !is_same_bits(value(piece.high), level);
      return fails ? Verdict::fails : Verdict::unknown;
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
  return holds_for_all<float>(-greatest_fp32, greatest_fp32, [&](const Interval<float>& piece) {
    if (is_wrong_at(piece.low) || is_wrong_at(piece.high)) return Verdict::fails;
    Equality<float> equality(program, piece);
    for (std::size_t i = 0; i < half; ++i) {
      const std::uint16_t expected = program.results[i], got = program.results[half + i];
      // A result of 0, or NaN from 0 times infinity, is right where 0 is expected.
      const Interval<float>&x = equality.range(expected), &y = equality.range(got);
      const bool is_constant = x.low == x.high && y.low == y.high && x.low == y.low && !x.may_be_nan;
      if (!is_constant && !equality.holds(expected, got)) return Verdict::unknown;
    }
    return Verdict::holds;
  });
}

}  // namespace gdpa::activation
