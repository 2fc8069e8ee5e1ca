// Compiling ahead covers every kernel that calls of one kind can need: whatever the lengths of the sequences, the
// number of batch entries and the number of heads are, the planned kernels are among those that steps_ahead() lists
// for another problem of that kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cuda/backend.h"
#include "cuda/source.h"
#include "cuda/target.h"
#include "gdpa/activation.h"
#include "gdpa/error.h"

namespace gdpa::cuda {
namespace {

/// Draws kinds of problems, and problems of a kind.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  template <class T>
  T one_of(std::initializer_list<T> values) {
    return std::data(values)[below(static_cast<int64_t>(values.size()))];
  }
  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random_); }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }

  /// From 0 to `most`, small numbers as often as large ones.
  int64_t number(int64_t most) {
    const double exponent = std::uniform_real_distribution<>(0, std::log2(static_cast<double>(most) + 1))(random_);
    return static_cast<int64_t>(std::exp2(exponent)) - 1;
  }

  Problem kind() {
    Problem problem;
    problem.direction = one_of({Direction::forward, Direction::backward});
    problem.device = {DeviceKind::cuda, 0};
    problem.dtype = one_of({DType::bfloat16, DType::bfloat16, DType::float16, DType::float32});
    problem.query_form = one_of({Form::jagged, Form::dense, Form::shared});
    problem.key_form = one_of({Form::jagged, Form::dense, Form::shared});
    problem.heads_q = problem.heads_k = 1;
    if (chance(.3)) problem.heads_q = 4;
    problem.head_dim = problem.head_dim_v = one_of<int64_t>({16, 64, 64, 96, 128, 128, 192, 256});
    if (chance(.2)) problem.head_dim_v = one_of<int64_t>({32, 64, 128});
    if (chance(.3)) problem.mask = one_of({Mask{-1, 0}, Mask{100, 20}});
    problem.out_scale =
        one_of({OutScale::Kind::number, OutScale::Kind::reciprocal_length_q, OutScale::Kind::reciprocal_length_k});
    if (problem.direction == Direction::forward && problem.key_form == Form::dense && chance(.5)) {
      problem.page_rows = one_of<int64_t>({16, 48, 64, 256});
    }
    problem.deterministic = chance(.3);
    problem.allow_tf32 = chance(.3);
    if (problem.direction == Direction::backward && chance(.4)) {
      problem.wanted = one_of({WantedGradients{true, false, false}, WantedGradients{false, true, false},
                               WantedGradients{false, false, true}, WantedGradients{true, true, false},
                               WantedGradients{true, false, true}, WantedGradients{false, true, true}});
    }
    return problem;
  }

  /// `kind` with lengths, batch entries and heads of its own.
  Problem of_kind(const Problem& kind) {
    Problem problem = kind;
    const bool has_one = kind.query_form == Form::shared && kind.key_form == Form::shared;
    problem.batch = has_one ? 1 : number(3000);
    const int64_t heads = 1 + number(40);
    problem.heads_q *= heads;
    problem.heads_k *= heads;
    problem.rows_q = rows(kind.query_form, problem.batch);
    problem.rows_k = rows(kind.key_form, problem.batch);
    return problem;
  }

 private:
  int64_t rows(Form form, int64_t batch) {
    const int64_t length = number(3000);
    if (form == Form::shared) return length;
    // Packed sequences seldom have a whole number of rows on average.
    return form == Form::dense ? length * batch : length * batch + below(std::max<int64_t>(1, batch));
  }

  std::mt19937_64 random_;
};

std::vector<std::string> names_of(const std::vector<plan::GpuStep>& steps) {
  std::vector<std::string> names;
  for (const plan::GpuStep& step : steps) names.push_back(describe(step.kernel));
  return names;
}

TEST(ReachableKernels, EveryPlanOfAKindHasKernelsThatWereCompiledAhead) {
  Draw draw(20);
  const Params params = [] {
    Params any{};
    any.scale = .1;
    return any;
  }();
  int problems = 0, with_others = 0;
  for (int round = 0; round < 400; ++round) {
    const Problem kind = draw.kind();
    const Activation activation(draw.one_of({"gelu", "relu", "erf(s)", "silu"}));
    const plan::Gpu gpu = target_of(draw.one_of<std::string>({"sm_90a", "sm_90a", "sm_90a", "sm_80", "sm_120a"})).gpu;
    const auto steps_of = [&](const Problem& problem, Lengths lengths) {
      return steps_ahead(problem, params, activation.function(), gpu, lengths);
    };
    try {
      const std::vector<plan::GpuStep> ahead = steps_of(draw.of_kind(kind), Lengths::any);
      for (int i = 0; i < 10; ++i) {
        const Problem problem = draw.of_kind(kind);
        for (const plan::GpuStep& step : steps_of(problem, Lengths::these)) {
          const bool is_there = std::any_of(ahead.begin(), ahead.end(),
                                            [&](const plan::GpuStep& known) { return known.kernel == step.kernel; });
          EXPECT_TRUE(is_there) << describe(step.kernel) << " of batch " << problem.batch << ", rows " << problem.rows_q
                                << " and " << problem.rows_k << ", heads " << problem.heads_k << " is not among\n"
                                << testing::PrintToString(names_of(ahead));
        }
        ++problems;
      }
      with_others += ahead.size() > steps_of(draw.of_kind(kind), Lengths::these).size() ? 1 : 0;
    } catch (const Error& error) {
      // Head dims that are too large for the shared memory of this GPU.
      EXPECT_NE(std::string(error.what()).find("shared memory"), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(problems, 3000);
  EXPECT_GT(with_others, 50);
}

}  // namespace
}  // namespace gdpa::cuda
