// Long sums on the CPU: over keys, queries, query heads and the batch, with partial sums and without. The error of a
// sum of n terms one by one in fp32 grows with the square root of n. These sums have tens of thousands of terms of one
// sign, and their error is that of a few hundred.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "api/checks.h"
#include "cpu/backend.h"
#include "cpu/parameter_sums.h"
#include "gdpa/attention.h"
#include "plan/cpu_units.h"
#include "reference.h"
#include "strided.h"

namespace gdpa::test {
namespace {

enum class Shared : std::uint8_t { nothing, queries, keys };

struct Case {
  const char* name;
  int64_t batch, queries, keys, heads_q, heads_k;
  Shared shared = Shared::nothing;
  int threads = 1;
  int64_t partial_bytes = 32 << 20;
  plan::CpuCut cut = plan::CpuCut::whole;  ///< of backward
};

constexpr int64_t width = 16;

/// An operand with positive numbers, so that all terms of a sum have one sign.
struct Rows {
  Rows(int64_t rows, int64_t heads, std::uint64_t seed) : dense(Dense::zeros(rows, heads, width)) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(0.5F, 1.5F);
    for (double& value : dense.values) {
      numbers.push_back(uniform(random));
      value = double{numbers.back()};
    }
  }
  TensorView view() const {
    return TensorView::contiguous(numbers.data(), DType::float32, {dense.rows, dense.heads, width});
  }
  MutableTensorView mutable_view() {
    return MutableTensorView::contiguous(numbers.data(), DType::float32, {dense.rows, dense.heads, width});
  }

  std::vector<float> numbers;
  Dense dense;
};

double relative_error(const std::vector<float>& result, const std::vector<double>& exact) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += (double{result[i]} - exact[i]) * (double{result[i]} - exact[i]);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(error / norm);
}

class LongSums : public testing::TestWithParam<Case> {};

TEST_P(LongSums, AreAsAccurateAsShortOnes) {
  const Case& of = GetParam();
  const bool shares_queries = of.shared == Shared::queries, shares_keys = of.shared == Shared::keys;
  const Rows query(shares_queries ? of.queries : of.batch * of.queries, of.heads_q, 1);
  const Rows key(shares_keys ? of.keys : of.batch * of.keys, of.heads_k, 2), value(key.dense.rows, of.heads_k, 3);
  const Rows grad_output(of.batch * of.queries, of.heads_q, 4);
  std::vector<int64_t> offsets_q, offsets_k;
  Reference reference{.query = query.dense,
                      .key = key.dense,
                      .value = value.dense,
                      .entries = {},
                      .function = [](double s) { return s; },
                      .derivative = [](double) { return 1.0; }};
  for (int64_t b = 0; b <= of.batch; ++b) {
    offsets_q.push_back(b * of.queries);
    offsets_k.push_back(b * of.keys);
    if (b == of.batch) continue;
    reference.entries.push_back({.query_begin = shares_queries ? 0 : b * of.queries,
                                 .output_begin = b * of.queries,
                                 .key_begin = shares_keys ? 0 : b * of.keys,
                                 .length_q = of.queries,
                                 .length_k = of.keys});
  }
  reference.output_rows = of.batch * of.queries;
  const auto lengths = [](const std::vector<int64_t>& offsets) {
    return TensorView::contiguous(offsets.data(), DType::int64, {static_cast<int64_t>(offsets.size())});
  };
  Attention attention{
      .query = query.view(), .key = key.view(), .value = value.view(), .activation = Activation("s"), .scale = 1};
  if (!shares_queries) attention.cu_seqlens_q = lengths(offsets_q);
  if (!shares_keys) attention.cu_seqlens_k = lengths(offsets_k);

  plan::Processor processor{of.threads, 1 << 20};
  processor.thread_cost = 1;
  processor.partial_bytes = of.partial_bytes;
  Rows output(of.batch * of.queries, of.heads_q, 5), grad_query = query, grad_key = key, grad_value = value;
  const activation::Function& function = attention.activation.function();
  const CheckedCall forward = api::check_forward(attention, output.mutable_view());
  cpu::run(forward.problem, forward.params, function, nullptr, processor);
  const CheckedCall backward = api::check_backward(
      attention, {grad_output.view(), grad_query.mutable_view(), grad_key.mutable_view(), grad_value.mutable_view()});
  cpu::run(backward.problem, backward.params, function, nullptr, processor);
  const plan::CpuSchedule schedule = plan::schedule_for_cpu(backward.problem, backward.params, processor);
  EXPECT_EQ(schedule.cut, of.cut);

  const ReferenceGradients gradients = reference_gradients(reference, grad_output.dense);
  constexpr double bound = 4e-7;
  EXPECT_LE(relative_error(output.numbers, reference_output(reference).values), bound) << "O";
  EXPECT_LE(relative_error(grad_query.numbers, gradients.query.values), bound) << "dQ";
  EXPECT_LE(relative_error(grad_key.numbers, gradients.key.values), bound) << "dK";
  EXPECT_LE(relative_error(grad_value.numbers, gradients.value.values), bound) << "dV";
}

const Case cases[] = {
    {"over_keys", 1, 4, 32768, 1, 1},
    {"over_queries", 1, 32768, 4, 1, 1},
    {"over_queries_in_partial_sums", 1, 32768, 4, 1, 1, Shared::nothing, 4, 32 << 20, plan::CpuCut::partial},
    {"over_queries_separately", 1, 32768, 4, 1, 1, Shared::nothing, 4, 0, plan::CpuCut::separate},
    {"over_query_heads", 1, 256, 4, 128, 1},
    {"of_shared_queries", 8192, 4, 4, 1, 1, Shared::queries, 1, 32 << 20, plan::CpuCut::partial},
    {"of_shared_queries_with_many_keys", 3, 4, 8192, 1, 1, Shared::queries, 1, 32 << 20, plan::CpuCut::partial},
    {"of_shared_queries_without_partial_sums", 500, 4, 64, 1, 1, Shared::queries, 1, 0, plan::CpuCut::separate},
    {"of_shared_keys", 8192, 4, 4, 1, 1, Shared::keys, 1, 32 << 20, plan::CpuCut::partial},
    {"of_shared_keys_on_threads", 8192, 4, 4, 1, 1, Shared::keys, 4, 32 << 20, plan::CpuCut::partial},
    {"of_shared_keys_without_partial_sums", 8192, 4, 4, 1, 1, Shared::keys, 1, 0, plan::CpuCut::separate},
};

INSTANTIATE_TEST_SUITE_P(Cpu, LongSums, testing::ValuesIn(cases),
                         [](const testing::TestParamInfo<Case>& of) { return std::string(of.param.name); });

/// The gradients of tensors are sums of dP over the scores that read an element. The operands are multiples of 1/256,
/// so that dP is exact in fp32 and each sum is exact in double. Its rounding in fp32 would show.
TEST(SumsOfTensors, AreInDoubleForEveryFormOfARead) {
  struct Shape {
    int64_t batch, queries, keys;
  };
  for (const Shape& shape : {Shape{1, 300, 300}, Shape{2000, 4, 4}}) {
    const auto exact_rows = [](int64_t rows, std::uint64_t seed) {
      Rows result(rows, 1, seed);
      for (std::size_t i = 0; i < result.numbers.size(); ++i) {
        result.numbers[i] = std::nearbyint(result.numbers[i] * 256) / 256;
        result.dense.values[i] = double{result.numbers[i]};
      }
      return result;
    };
    const Rows query = exact_rows(shape.batch * shape.queries, 1), grad_output = exact_rows(query.dense.rows, 2);
    const Rows key = exact_rows(shape.batch * shape.keys, 3), value = exact_rows(key.dense.rows, 4);
    std::vector<int64_t> offsets_q, offsets_k;
    for (int64_t b = 0; b <= shape.batch; ++b) {
      offsets_q.push_back(b * shape.queries);
      offsets_k.push_back(b * shape.keys);
    }
    const auto lengths = [](const std::vector<int64_t>& offsets) {
      return TensorView::contiguous(offsets.data(), DType::int64, {static_cast<int64_t>(offsets.size())});
    };
    // Each tensor with its sizes, and the element that a score reads.
    struct Read {
      const char* name;
      std::vector<int64_t> sizes;
      std::function<int64_t(int64_t, int64_t)> element;
      std::vector<double> expected = {};
      Strided numbers = {}, gradient = {};
    };
    std::vector<Read> reads = {
        {"number", {1}, [](int64_t, int64_t) { return 0; }},
        {"fixed", {2}, [](int64_t, int64_t) { return 1; }},
        {"row", {shape.queries}, [](int64_t i, int64_t) { return i; }},
        {"column", {shape.keys}, [](int64_t, int64_t j) { return j; }},
        {"both", {shape.queries, shape.keys}, [&](int64_t i, int64_t j) { return i * shape.keys + j; }},
        {"diagonal", {shape.queries + shape.keys}, [&](int64_t i, int64_t j) { return i - j + shape.keys; }},
        {"bucket", {7}, [](int64_t i, int64_t j) { return (i / 8 + j / 8) % 7; }}};
    Attention attention{.query = query.view(),
                        .key = key.view(),
                        .value = value.view(),
                        .cu_seqlens_q = lengths(offsets_q),
                        .cu_seqlens_k = lengths(offsets_k),
                        .scale = 1};
    std::vector<ParameterGradient> gradients;
    std::vector<std::string> names;
    for (Read& read : reads) {
      read.numbers = Strided::contiguous(DType::float32, read.sizes);
      read.numbers.for_each([](std::byte* at) { from_double(DType::float32, 0.25, at); });
      read.gradient = Strided::contiguous(DType::float64, read.sizes);
      read.expected.resize(read.gradient.values().size());
      names.emplace_back(read.name);
      attention.parameters.push_back({read.name, read.numbers.view()});
      gradients.push_back({read.name, read.gradient.mutable_view()});
    }
    attention.activation = Activation(
        "s + number + fixed[1] + row[q_idx] + column[kv_idx] + both[q_idx, kv_idx] + diagonal[q_idx - kv_idx + n] + "
        "bucket[q_idx // 8 + kv_idx // 8 - (q_idx // 8 + kv_idx // 8) // 7 * 7]",
        {{"n", static_cast<double>(shape.keys)}}, names);
    backward(attention, grad_output.view(), {}, {}, {}, gradients);
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t i = 0; i < shape.queries; ++i) {
        for (int64_t j = 0; j < shape.keys; ++j) {
          const double grad_weight =
              dot(grad_output.dense.at(b * shape.queries + i, 0), value.dense.at(b * shape.keys + j, 0), width);
          for (Read& read : reads) read.expected[static_cast<std::size_t>(read.element(i, j))] += grad_weight;
        }
      }
    }
    for (Read& read : reads) EXPECT_EQ(read.gradient.values(), read.expected) << read.name;
  }
}

/// A group stores one double for each element of each gradient. All groups together take at most 1 GiB, but there is
/// always one group.
TEST(SumsOfTensors, OfAllGroupsFitIntoABoundedMemory) {
  Params params;
  double anything;
  const auto groups = [&](const std::vector<int64_t>& elements, int threads, std::size_t units) {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      BoundTensor& gradient = params.grad_parameters[2 * i];  // one between is not wanted
      gradient.data = &anything;
      gradient.rank = 2;
      gradient.sizes[0] = 1 << 10;
      gradient.sizes[1] = elements[i] >> 10;
    }
    return cpu::ParameterSums::group_count(params, threads, units);
  };
  constexpr int64_t gibibyte_of_doubles = int64_t{1} << 27, row = 1 << 10;
  EXPECT_EQ(groups({row}, 8, 100), 8) << "one for each thread";
  EXPECT_EQ(groups({row}, 8, 3), 3) << "and no more than units";
  EXPECT_EQ(groups({row}, 8, 0), 1);
  EXPECT_EQ(groups({gibibyte_of_doubles / 8}, 64, 100), 8);
  EXPECT_EQ(groups({gibibyte_of_doubles / 8 + row}, 64, 100), 7);
  EXPECT_EQ(groups({gibibyte_of_doubles / 8 + row}, 6, 100), 6);
  EXPECT_EQ(groups({gibibyte_of_doubles / 16, gibibyte_of_doubles / 16}, 64, 100), 8) << "of two tensors";
  EXPECT_EQ(groups({gibibyte_of_doubles / 16, gibibyte_of_doubles / 16 + row}, 64, 100), 7);
  EXPECT_EQ(groups({gibibyte_of_doubles, row}, 64, 100), 1);
  EXPECT_EQ(groups({gibibyte_of_doubles + row}, 64, 100), 1) << "a gradient that is larger alone";
}

}  // namespace
}  // namespace gdpa::test
