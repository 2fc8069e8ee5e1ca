// Compiling ahead covers every kernel that calls of one kind can need: whatever the lengths of the sequences, the
// number of batch entries and the number of heads are, the planned kernels are among those that kernels_ahead() lists
// for another problem of that kind. The axes of a dense bias are as long as the sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gdpa/activation.h"
#include "gdpa/error.h"
#include "gpu/backend.h"
#include "gpu/target.h"

namespace gdpa::gpu {
namespace {

bool has_one_entry(const Problem& kind) { return kind.query_form == Form::shared && kind.key_form == Form::shared; }

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
    problem.batch = has_one_entry(kind) ? 1 : number(3000);
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

/// A bias that the function `silu(s + t[b, h, i, j])` reads: which of its axes all entries, or all heads, share.
struct Bias {
  NumberType type = NumberType::bfloat16;
  bool has_entries = true;
  bool has_heads = true;
};

/// The tensors of a call: the bias, if there is one, and its gradient, if it is wanted.
Params params_of(const Problem& problem, const Bias* bias) {
  Params params{};
  params.scale = .1;
  if (bias == nullptr) return params;
  BoundTensor& tensor = params.parameters.tensors[0];
  tensor.type = bias->type;
  tensor.rank = 4;
  const int64_t batch = std::max<int64_t>(1, problem.batch);
  const auto longest = [&](Form form, int64_t rows) { return 1 + (form == Form::shared ? rows : rows / batch); };
  const int64_t sizes[] = {bias->has_entries ? batch : 1, bias->has_heads ? problem.heads_q : 1,
                           longest(problem.query_form, problem.rows_q), longest(problem.key_form, problem.rows_k)};
  int64_t stride = 1;
  for (int axis = tensor.rank; axis-- > 0; stride *= sizes[axis]) {
    tensor.sizes[axis] = sizes[axis];
    tensor.strides[axis] = stride;
  }
  if (problem.direction == Direction::backward && problem.wanted.parameters != 0) {
    params.grad_parameters[0] = tensor;
  }
  return params;
}

std::vector<std::string> descriptions_of(const std::vector<KernelAhead>& kernels) {
  std::vector<std::string> descriptions;
  for (const KernelAhead& of : kernels) descriptions.push_back(of.kernel.description());
  return descriptions;
}

TEST(ReachableKernels, EveryPlanOfAKindHasKernelsThatWereCompiledAhead) {
  Draw draw(20);
  int problems = 0, with_others = 0;
  for (int round = 0; round < 300; ++round) {
    Problem kind = draw.kind();
    const Bias of_kind = {draw.one_of({NumberType::bfloat16, NumberType::float32}), draw.chance(.5), draw.chance(.7)};
    const Bias* const bias = draw.chance(.4) ? &of_kind : nullptr;
    if (bias != nullptr) kind.tensor_types = static_cast<unsigned>(bias->type);
    if (bias != nullptr && kind.direction == Direction::backward && draw.chance(.5)) kind.wanted.parameters = 1;
    const Activation activation =
        bias == nullptr ? Activation(draw.one_of({"gelu", "relu", "erf(s)", "silu"}))
                        : Activation("silu(s + t[batch, head, q_idx, kv_idx])", {}, std::vector<std::string>{"t"});
    const Gpu gpu = target_of(draw.one_of<std::string>({"sm_90a", "sm_90a", "sm_90a", "sm_80", "sm_120a"})).gpu;
    const auto kernels_of = [&](const Problem& problem, Lengths lengths) {
      return kernels_ahead(problem, params_of(problem, bias), activation.function(), gpu, lengths);
    };
    try {
      Problem first = draw.of_kind(kind);
      // All entries, or all heads, share an axis of one element.
      const auto has_short_axes = [](const Problem& of) {
        const bool has_few_entries = of.batch < 2 && !has_one_entry(of);
        return has_few_entries || of.heads_q < 2 || of.rows_q < 2 * of.batch || of.rows_k < 2 * of.batch;
      };
      while (bias != nullptr && has_short_axes(first)) first = draw.of_kind(kind);
      const std::vector<KernelAhead> ahead = kernels_of(first, Lengths::any);
      for (int i = 0; i < 10; ++i) {
        const Problem problem = draw.of_kind(kind);
        for (const auto& [kernel, ctas] : kernels_of(problem, Lengths::these)) {
          EXPECT_TRUE(std::ranges::find(ahead, kernel, &KernelAhead::kernel) != ahead.end())
              << kernel.description() << " of batch " << problem.batch << ", rows " << problem.rows_q << " and "
              << problem.rows_k << ", heads " << problem.heads_k << " is not among\n"
              << testing::PrintToString(descriptions_of(ahead));
        }
        ++problems;
      }
      with_others += ahead.size() > kernels_of(draw.of_kind(kind), Lengths::these).size() ? 1 : 0;
    } catch (const Error& error) {
      // Head dims that are too large for the shared memory of this GPU.
      EXPECT_NE(std::string(error.what()).find("shared memory"), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(problems, 2000);
  EXPECT_GT(with_others, 40);
}

}  // namespace
}  // namespace gdpa::gpu
