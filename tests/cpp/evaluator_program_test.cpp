// How the evaluator runs whole programs: register reuse, outputs in place, strips and their ends, sharing between
// threads. The programs here are exact in floating point, so that results are compared bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "cpu/evaluator.h"
#include "program_builder.h"
#include "simd_targets.h"

namespace gdpa::cpu {
namespace {

using activation::Operation;
using activation::Program;
using activation::Step;
using testing::ProgramBuilder;

/// Step by step, one score at a time; knows the operations that random_program uses.
std::vector<double> by_definition(const Program& program, double score) {
  std::vector<double> values;
  for (const Step& step : program.steps) {
    const auto a = [&] { return values[step.a]; };
    const auto b = [&] { return values[step.b]; };
    switch (step.operation) {
      case Operation::constant:
        values.push_back(step.number);
        break;
      case Operation::score:
        values.push_back(score);
        break;
      case Operation::add:
        values.push_back(a() + b());
        break;
      case Operation::subtract:
        values.push_back(a() - b());
        break;
      case Operation::multiply:
        values.push_back(a() * b());
        break;
      case Operation::negate:
        values.push_back(-a());
        break;
      case Operation::minimum:
        values.push_back(std::min(a(), b()));
        break;
      case Operation::maximum:
        values.push_back(std::max(a(), b()));
        break;
      case Operation::less:
        values.push_back(a() < b() ? 1 : 0);
        break;
      case Operation::select:
        values.push_back(a() != 0 ? b() : values[step.c]);
        break;
      default:
        ADD_FAILURE() << "an operation that this reference does not know";
    }
  }
  std::vector<double> results;
  for (const std::uint16_t result : program.results) results.push_back(values[result]);
  return results;
}

/// A program of `length` steps after its leaves, each of random earlier values. Every value is kept in [-8, 8], so
/// that the whole computation is exact for scores that are whole numbers.
Program random_program(std::mt19937& random, int length, std::size_t results) {
  ProgramBuilder builder;
  std::vector<std::uint16_t> values = {builder.score()};
  for (const double x : {-2.0, 0.0, 1.0, 3.0}) values.push_back(builder.number(x));
  const auto low = builder.number(-8);
  const auto high = builder.number(8);
  const auto pick = [&] { return values[random() % values.size()]; };
  for (int i = 0; i < length; ++i) {
    constexpr std::array operations = {Operation::add,     Operation::subtract, Operation::multiply, Operation::minimum,
                                       Operation::maximum, Operation::negate,   Operation::select};
    const Operation operation = operations[random() % operations.size()];
    const auto first = operation == Operation::select ? builder.step(Operation::less, pick(), pick()) : pick();
    const auto value = builder.step(operation, first, pick(), pick());
    // Not always bounded at once: products must also meet sums and differences directly, where they are fused.
    const std::uint16_t other = pick();
    const Operation sum = random() % 2 == 0 ? Operation::add : Operation::subtract;
    std::uint16_t result = value;
    if (random() % 2 == 0)
      result = random() % 2 == 0 ? builder.step(sum, value, other) : builder.step(sum, other, value);
    values.push_back(builder.step(Operation::maximum, low, builder.step(Operation::minimum, result, high)));
  }
  std::vector<std::uint16_t> wanted;
  for (std::size_t k = 0; k < results; ++k) wanted.push_back(pick());
  return builder.with_results(wanted);
}

template <class T>
std::vector<T> whole_numbers(std::size_t count) {
  std::vector<T> scores(count);
  for (std::size_t i = 0; i < count; ++i) scores[i] = static_cast<T>(static_cast<int>(i % 17) - 8);
  return scores;
}

/// f(s) = s^2 / 2 with f'(s) = s: the derivative is the score itself.
Program half_square() {
  ProgramBuilder builder;
  const auto score = builder.score();
  const auto square = builder.step(Operation::multiply, score, score);
  return builder.with_results({builder.step(Operation::multiply, square, builder.number(0.5)), score});
}

/// tanh with its derivative 1 - tanh^2. Every bit depends on the rounding.
Program tanh_with_derivative(bool derivative) {
  ProgramBuilder builder;
  const auto value = builder.step(Operation::tanh, builder.score());
  const auto square = builder.step(Operation::multiply, value, value);
  const auto slope = builder.step(Operation::subtract, builder.number(1), square);
  return derivative ? builder.with_results({value, slope}) : builder.with_results({value});
}

class EvaluatorProgram : public testing::OnEveryTarget {
 protected:
  template <class T>
  void random_programs_follow_their_definition() {
    std::mt19937 random(5);
    const std::vector<T> scores = whole_numbers<T>(3000);
    std::vector<T> value(scores.size());
    std::vector<T> derivative(scores.size());
    for (int i = 0; i < 150; ++i) {
      const std::size_t results = 1 + random() % 2;
      const Program program = random_program(random, static_cast<int>(random() % 60), results);
      T* const second = results == 2 ? derivative.data() : nullptr;
      Evaluator(program).evaluate(scores.data(), static_cast<std::int64_t>(scores.size()), value.data(), second);
      for (std::size_t k = 0; k < scores.size(); ++k) {
        const std::vector<double> expected = by_definition(program, static_cast<double>(scores[k]));
        ASSERT_EQ(static_cast<double>(value[k]), expected[0]) << "program " << i << " at " << scores[k];
        if (results == 2) {
          ASSERT_EQ(static_cast<double>(derivative[k]), expected[1]) << "program " << i << " at " << scores[k];
        }
        if (k == 40) k = scores.size() - 40;  // the scores repeat; the ends of the strips do not
      }
    }
  }

  template <class T>
  void a_result_depends_on_its_score_alone() {
    std::mt19937 random(9);
    std::normal_distribution<T> normal(0, 3);
    std::vector<T> scores(5000);
    for (T& x : scores) x = normal(random);
    const Evaluator evaluator(tanh_with_derivative(true));
    std::vector<T> alone(scores.size());
    std::vector<T> alone_derivative(scores.size());
    for (std::size_t i = 0; i < scores.size(); ++i) {
      evaluator.evaluate(&scores[i], 1, &alone[i], &alone_derivative[i]);
    }
    for (const std::size_t offset : {0, 1, 7}) {
      for (const std::size_t count : {0, 1, 3, 8, 15, 16, 17, 31, 33, 64, 100, 1000, 1023, 1025, 2048, 4993}) {
        std::vector<T> value(count + 1, T{77});
        std::vector<T> derivative(count + 1, T{77});
        evaluator.evaluate(scores.data() + offset, static_cast<std::int64_t>(count), value.data(), derivative.data());
        ASSERT_EQ(std::memcmp(value.data(), alone.data() + offset, count * sizeof(T)), 0) << count;
        ASSERT_EQ(std::memcmp(derivative.data(), alone_derivative.data() + offset, count * sizeof(T)), 0) << count;
        ASSERT_EQ(value[count], 77) << "wrote beyond the end";
        ASSERT_EQ(derivative[count], 77) << "wrote beyond the end";
      }
    }
  }

  template <class T>
  void outputs_may_be_the_scores(const Program& program) {
    const Evaluator evaluator(program);
    const std::vector<T> scores = whole_numbers<T>(2500);
    const auto count = static_cast<std::int64_t>(scores.size());
    std::vector<T> value(scores.size());
    std::vector<T> derivative(scores.size());
    evaluator.evaluate(scores.data(), count, value.data(), derivative.data());

    std::vector<T> in_place = scores;
    std::vector<T> other(scores.size());
    evaluator.evaluate(in_place.data(), count, in_place.data(), other.data());
    EXPECT_EQ(in_place, value);
    EXPECT_EQ(other, derivative);

    in_place = scores;
    evaluator.evaluate(in_place.data(), count, other.data(), in_place.data());
    EXPECT_EQ(other, value);
    EXPECT_EQ(in_place, derivative);
  }
};

TEST_P(EvaluatorProgram, RandomProgramsFollowTheirDefinition) {
  random_programs_follow_their_definition<float>();
  random_programs_follow_their_definition<double>();
}

TEST_P(EvaluatorProgram, AResultDependsOnItsScoreAlone) {
  a_result_depends_on_its_score_alone<float>();
  a_result_depends_on_its_score_alone<double>();
}

TEST_P(EvaluatorProgram, OutputsMayBeTheScores) {
  std::mt19937 random(13);
  std::vector<Program> programs = {half_square(), tanh_with_derivative(true)};
  for (int i = 0; i < 60; ++i) programs.push_back(random_program(random, 8, 2));
  for (const Program& program : programs) {
    outputs_may_be_the_scores<float>(program);
    outputs_may_be_the_scores<double>(program);
  }
}

TEST_P(EvaluatorProgram, ConstantsAndTheScoreMayBeResults) {
  ProgramBuilder builder;
  const auto score = builder.score();
  const Evaluator evaluator(builder.with_results({score, builder.number(1)}));
  const std::vector<float> scores = whole_numbers<float>(100);
  std::vector<float> value(100);
  std::vector<float> derivative(100);
  evaluator.evaluate(scores.data(), 100, value.data(), derivative.data());
  EXPECT_EQ(value, scores);
  EXPECT_EQ(derivative, std::vector<float>(100, 1.0F));
}

TEST_P(EvaluatorProgram, ManyValuesAliveAtOnceStillFit) {
  // Sums of all pairs of powers: no power may be dropped before the last sum.
  ProgramBuilder builder;
  std::vector<std::uint16_t> powers = {builder.score()};
  for (int i = 1; i < 600; ++i) powers.push_back(builder.step(Operation::negate, powers.back()));
  auto sum = builder.number(0);
  for (std::size_t i = powers.size(); i-- > 0;) sum = builder.step(Operation::add, sum, powers[i]);
  const Evaluator evaluator(builder.with_results({builder.step(Operation::add, sum, powers.front())}));
  const std::vector<double> scores = whole_numbers<double>(1000);
  std::vector<double> value(scores.size());
  evaluator.evaluate(scores.data(), 1000, value.data());
  EXPECT_EQ(value, scores);  // the signs alternate, so that only the last term remains
}

TEST_P(EvaluatorProgram, TheValueHasTheSameBitsWithAndWithoutTheDerivative) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> scores(3000);
  for (float& x : scores) x = normal(random);
  std::vector<float> value(scores.size());
  std::vector<float> again(scores.size());
  std::vector<float> derivative(scores.size());
  Evaluator(tanh_with_derivative(false)).evaluate(scores.data(), 3000, value.data());
  Evaluator(tanh_with_derivative(true)).evaluate(scores.data(), 3000, again.data(), derivative.data());
  EXPECT_EQ(value, again);
}

TEST_P(EvaluatorProgram, OneMinusASigmoidKeepsItsRelativeAccuracy) {
  ProgramBuilder pair;
  const auto score = pair.score();
  const auto sigmoid = pair.step(Operation::sigmoid, score);
  const auto complement = pair.step(Operation::subtract, pair.number(1), sigmoid);
  const auto later = pair.step(Operation::negate, complement);
  const Evaluator both(pair.with_results({sigmoid, complement}));
  const Evaluator complement_alone(pair.with_results({complement}));
  const Evaluator complement_used(pair.with_results({later, sigmoid}));
  const Evaluator mirrored(testing::program_of(Operation::sigmoid));

  std::vector<float> scores;
  std::vector<float> negated;
  for (float x = -90; x < 90; x += 0.37F) {
    scores.push_back(x);
    negated.push_back(-x);
  }
  const auto count = static_cast<std::int64_t>(scores.size());
  std::vector<float> expected_sigmoid(scores.size());
  std::vector<float> expected_complement(scores.size());
  mirrored.evaluate(scores.data(), count, expected_sigmoid.data());
  mirrored.evaluate(negated.data(), count, expected_complement.data());  // 1 - sigmoid(x) is sigmoid(-x)

  std::vector<float> first = scores;
  std::vector<float> second(scores.size());
  both.evaluate(first.data(), count, first.data(), second.data());
  EXPECT_EQ(first, expected_sigmoid);
  EXPECT_EQ(second, expected_complement);
  complement_alone.evaluate(scores.data(), count, first.data());
  EXPECT_EQ(first, expected_complement);
  complement_used.evaluate(scores.data(), count, first.data(), second.data());
  for (float& x : first) x = -x;
  EXPECT_EQ(first, expected_complement);
  EXPECT_EQ(second, expected_sigmoid);
}

TEST(EvaluatorThreads, OneEvaluatorServesManyThreads) {
  std::mt19937 random(21);
  const Program program = random_program(random, 40, 2);
  const Evaluator evaluator(program);
  std::vector<int> failures(8);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < failures.size(); ++thread) {
    threads.emplace_back([&, thread] {
      const std::vector<float> scores(20001, static_cast<float>(thread));
      const std::vector<double> expected = by_definition(program, static_cast<double>(thread));
      std::vector<float> value(scores.size());
      std::vector<float> derivative(scores.size());
      for (int i = 0; i < 100; ++i) {
        evaluator.evaluate(scores.data(), 20001, value.data(), derivative.data());
        const auto right = [](const std::vector<float>& results, double number) {
          return std::count(results.begin(), results.end(), static_cast<float>(number)) == 20001;
        };
        if (!right(value, expected[0]) || !right(derivative, expected[1])) ++failures[thread];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, std::vector<int>(8, 0));
}

INSTANTIATE_TEST_SUITE_P(Targets, EvaluatorProgram, testing::all_simd_targets(), testing::target_name);

}  // namespace
}  // namespace gdpa::cpu
