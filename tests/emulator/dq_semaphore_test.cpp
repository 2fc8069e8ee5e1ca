// Sums of dQ to which tiles of keys of several CTAs add (kernels/hopper/dq_semaphore.cuh), with another random order of
// warps, CTAs and copies in each call. The results must be correct with and without a mask, and have the same bits in
// deterministic mode. Sequences are longer than in random_problem.h, so that the tiles of keys include first writers,
// last writers and other tiles. With few keys, the sums are in the gradient. With a batch map, or if the batch shares
// the keys, the query tiles of several entries attend to a key tile. If the host knows that no sequence has more than
// 64 keys, only one consumer of a CTA has keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "device.h"
#include "gdpa/gdpa.h"
#include "numbers.h"
#include "reference.h"

namespace gdpa::test {
namespace {

constexpr int64_t heads = 2, head_dim = 40;  // each consumer has columns of dQ: the first one has 32
constexpr double scale = 0.16;

/// Rows of bfloat16, (tokens, heads, head_dim).
using Rows = std::vector<std::uint16_t>;

std::size_t elements_of(int64_t tokens) { return static_cast<std::size_t>(tokens * heads * head_dim); }

Rows drawn_rows(int64_t tokens, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Rows rows(elements_of(tokens));
  for (std::uint16_t& element : rows) element = emulator::BFloat16::from(normal(random));
  return rows;
}

Dense numbers_of(const Rows& rows) {
  Dense numbers = Dense::zeros(static_cast<int64_t>(rows.size()) / (heads * head_dim), heads, head_dim);
  std::transform(rows.begin(), rows.end(), numbers.values.begin(), emulator::BFloat16::to_float);
  return numbers;
}

struct TurnsCase {
  const char* name;
  Mask mask;
  int64_t longest = 330;          ///< of the sequences' queries
  std::vector<int64_t> map = {};  ///< the sequence of keys of each entry; empty: no batch map
  OutScale out_scale = {};
  std::vector<int64_t> lengths_k = {700, 300, 300, 0};  ///< one length: the batch shares the keys
  bool dense_keys = false;  ///< without cumulative lengths, so that the host knows the length; with equal lengths
  std::vector<int64_t> lengths_q = {};  ///< in place of `longest`, 64, 0 and 90
  int calls = 8;                        ///< each in an order of its own
};
std::ostream& operator<<(std::ostream& stream, const TurnsCase& test) { return stream << test.name; }

struct Problem {
  std::vector<int64_t> lengths_q, lengths_k;
  std::vector<int64_t> map;
  OutScale out_scale;
  Mask mask;
  bool dense_keys;
  Rows query, key, value, grad_output;

  explicit Problem(const TurnsCase& test)
      : lengths_q(test.lengths_q.empty() ? std::vector<int64_t>{test.longest, 64, 0, 90} : test.lengths_q),
        lengths_k(test.lengths_k),
        map(test.map),
        out_scale(test.out_scale),
        mask(test.mask),
        dense_keys(test.dense_keys) {
    std::mt19937 random(7);
    query = drawn_rows(tokens(lengths_q), random);
    grad_output = drawn_rows(tokens(lengths_q), random);
    key = drawn_rows(tokens(lengths_k), random);
    value = drawn_rows(tokens(lengths_k), random);
    // Sums in bfloat16 show their order without large terms.
    constexpr int64_t most_keys_of_rounded_sums = 512;
    if (lengths_k[0] > most_keys_of_rounded_sums) let_large_terms_cancel();
  }

  static int64_t tokens(const std::vector<int64_t>& lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  }

  /// By the definition, f = relu.
  ReferenceGradients expected() const {
    Reference reference;
    reference.query = numbers_of(query);
    reference.key = numbers_of(key);
    reference.value = numbers_of(value);
    reference.output_rows = tokens(lengths_q);
    reference.function = [](double score) { return std::max(score, 0.0); };
    reference.derivative = [](double score) { return score > 0 ? 1.0 : 0.0; };
    reference.scale = scale;
    reference.left = mask.left;
    reference.right = mask.right;
    int64_t begin_q = 0;
    for (std::size_t b = 0; b < lengths_q.size(); begin_q += lengths_q[b], ++b) {
      const std::size_t sequence = lengths_k.size() == 1 ? 0 : map.empty() ? b : static_cast<std::size_t>(map[b]);
      const int64_t begin_k =
          std::accumulate(lengths_k.begin(), lengths_k.begin() + static_cast<std::ptrdiff_t>(sequence), int64_t{0});
      reference.entries.push_back({begin_q, begin_q, begin_k, lengths_q[b], lengths_k[sequence]});
      const bool is_mean = out_scale.kind == OutScale::Kind::reciprocal_length_q;
      if (is_mean && lengths_q[b] > 0) reference.entries.back().out_scale = 1.0 / static_cast<double>(lengths_q[b]);
    }
    return reference_gradients(reference, numbers_of(grad_output));
  }

 private:
  /// Repeats some keys of the first sequence some tiles later, with a large value of the opposite sign. The rounding
  /// errors of the small sums then depend on the order of the additions. Rounded results would usually hide this order.
  void let_large_terms_cancel() {
    constexpr int64_t some = 150, further = 350;
    constexpr float large = 1024;
    for (std::size_t at = 0; at < elements_of(some); ++at) {
      const std::size_t again = at + elements_of(further);
      const float number = large * emulator::BFloat16::to_float(value[at]);
      key[again] = key[at];
      value[at] = emulator::BFloat16::from(number);
      value[again] = emulator::BFloat16::from(-number);
    }
  }
};

template <class Number>
GuardedMemory on_gpu(const std::vector<Number>& numbers) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(numbers.data());
  return {Gpu::get(), std::vector<std::byte>(bytes, bytes + numbers.size() * sizeof(Number)), 256};
}

/// dQ, dK and dV of a call.
struct Results {
  Rows query, key, value;
  bool operator==(const Results&) const = default;
};

Results computed(const Problem& problem, bool deterministic) {
  constexpr Device device{DeviceKind::cuda, 0};
  const auto offsets = [](const std::vector<int64_t>& lengths) {
    std::vector<int64_t> sums(lengths.size() + 1);
    std::partial_sum(lengths.begin(), lengths.end(), sums.begin() + 1);
    return sums;
  };
  const int64_t tokens_q = Problem::tokens(problem.lengths_q), tokens_k = Problem::tokens(problem.lengths_k);
  const auto view = [&](const GuardedMemory& memory, int64_t tokens) {
    return TensorView::contiguous(memory.data(), DType::bfloat16, {tokens, heads, head_dim}, device);
  };
  const auto result_view = [&](const GuardedMemory& memory, int64_t tokens) {
    return MutableTensorView::contiguous(memory.data(), DType::bfloat16, {tokens, heads, head_dim}, device);
  };
  const auto entries = static_cast<int64_t>(problem.lengths_k.size()), length_k = problem.lengths_k[0];
  const auto key_view = [&](const GuardedMemory& memory) {
    if (!problem.dense_keys) return view(memory, tokens_k);
    return TensorView::contiguous(memory.data(), DType::bfloat16, {entries, length_k, heads, head_dim}, device);
  };
  const auto key_result_view = [&](const GuardedMemory& memory) {
    if (!problem.dense_keys) return result_view(memory, tokens_k);
    return MutableTensorView::contiguous(memory.data(), DType::bfloat16, {entries, length_k, heads, head_dim}, device);
  };
  const auto offsets_view = [&](const GuardedMemory& memory, const std::vector<int64_t>& lengths) {
    return TensorView::contiguous(memory.data(), DType::int64, {static_cast<int64_t>(lengths.size()) + 1}, device);
  };
  const GuardedMemory query = on_gpu(problem.query), key = on_gpu(problem.key), value = on_gpu(problem.value),
                      grad_output = on_gpu(problem.grad_output), offsets_q = on_gpu(offsets(problem.lengths_q)),
                      offsets_k = on_gpu(offsets(problem.lengths_k)), map = on_gpu(problem.map);
  const auto poisoned = [](const Rows& like) { return on_gpu(Rows(like.size(), 0xffff)); };
  GuardedMemory grad_query = poisoned(problem.query), grad_key = poisoned(problem.key),
                grad_value = poisoned(problem.value);
  const auto map_view =
      TensorView::contiguous(map.data(), DType::int64, {static_cast<int64_t>(problem.map.size())}, device);
  Attention attention{.query = view(query, tokens_q),
                      .key = key_view(key),
                      .value = key_view(value),
                      .cu_seqlens_q = offsets_view(offsets_q, problem.lengths_q),
                      .cu_seqlens_k = problem.lengths_k.size() == 1 || problem.dense_keys
                                          ? std::nullopt
                                          : std::optional(offsets_view(offsets_k, problem.lengths_k)),
                      .kv_of = problem.map.empty() ? std::nullopt : std::optional(map_view),
                      .activation = Activation("relu"),
                      .scale = scale,
                      .out_scale = problem.out_scale,
                      .mask = problem.mask,
                      .deterministic = deterministic,
                      .stream = Gpu::get().stream()};
  const MutableTensorView of_query = result_view(grad_query, tokens_q), of_key = key_result_view(grad_key),
                          of_value = key_result_view(grad_value);
  const TensorView of_output = view(grad_output, tokens_q);
  const int64_t size = workspace_bytes(attention, of_output, of_query, of_key, of_value);
  GuardedMemory workspace = on_gpu(std::vector<std::uint8_t>(static_cast<std::size_t>(size), 0xff));
  if (size > 0) attention.workspace = {workspace.data(), size};
  backward(attention, of_output, of_query, of_key, of_value);
  workspace.fetch();
  EXPECT_TRUE(workspace.guards_are_intact()) << "the call has written outside its workspace";
  const auto fetched = [](GuardedMemory& memory) {
    memory.fetch();
    EXPECT_TRUE(memory.guards_are_intact());
    const std::vector<std::byte> bytes = memory.content();
    Rows rows(bytes.size() / sizeof(Rows::value_type));
    std::memcpy(rows.data(), bytes.data(), bytes.size());
    return rows;
  };
  return {fetched(grad_query), fetched(grad_key), fetched(grad_value)};
}

/// The norm of the error, as a part of the result's norm.
double error_of(const Rows& rows, const Dense& expected) {
  double errors = 0, squares = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double error = static_cast<double>(emulator::BFloat16::to_float(rows[i])) - expected.values[i];
    errors += error * error;
    squares += expected.values[i] * expected.values[i];
  }
  return std::sqrt(errors / squares);
}

class Turns : public testing::TestWithParam<TurnsCase> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }

  static void expect_right(const Results& results, const ReferenceGradients& expected) {
    constexpr double promise = 6e-3;  // of docs/accuracy.md, in bfloat16
    EXPECT_LT(error_of(results.query, expected.query), promise);
    EXPECT_LT(error_of(results.key, expected.key), promise);
    EXPECT_LT(error_of(results.value, expected.value), promise);
  }
};

TEST_P(Turns, GiveTheGradientsOfTheDefinitionInAnyOrderOfCtas) {
  const Problem problem(GetParam());
  const ReferenceGradients expected = problem.expected();
  for (int call = 0; call < GetParam().calls; ++call) expect_right(computed(problem, false), expected);
}

TEST_P(Turns, GiveTheSameBitsInAnyOrderOfCtasWhereTheyHaveOne) {
  const Problem problem(GetParam());
  const Results first = computed(problem, true);
  expect_right(first, problem.expected());
  for (int call = 1; call < GetParam().calls; ++call) EXPECT_TRUE(computed(problem, true) == first) << "call " << call;
}

/// Lists with a number for each sequence of keys and one more, or for each entry. If a list were one number shorter, it
/// would fill its part of the workspace, which is a multiple of 256 bytes, and the last number would be outside. The
/// last sequence has keys and queries.
TurnsCase map_of_64_sequences() {
  constexpr int64_t sequences = 64, entries = 65;
  std::vector<int64_t> map(entries);
  std::iota(map.begin(), map.end(), -1);
  map[0] = sequences - 1;
  return {"map_causal_of_64_sequences",
          Mask::causal(),
          0,
          map,
          {},
          std::vector<int64_t>(sequences, 9),
          false,
          std::vector<int64_t>(entries, 5),
          1};
}

/// Entries of which most have no queries. Those with queries have keys in no order. The lists of the entries of each
/// sequence of keys are merged (kernels/portable/group_entries.cuh).
TurnsCase map_of_many_entries(const char* name, std::size_t entries) {
  constexpr int64_t sequences = 40;
  std::vector<int64_t> map(entries), lengths_q(entries, 0);
  std::mt19937 random(4);
  for (std::size_t b = 0; b < map.size(); ++b) {
    map[b] = static_cast<int64_t>(random() % sequences);
    if (b % 300 == 7) lengths_q[b] = 3;
  }
  return {name, {}, 0, map, {}, std::vector<int64_t>(sequences, 9), false, lengths_q, 1};
}

INSTANTIATE_TEST_SUITE_P(
    Problems, Turns,
    testing::Values(TurnsCase{"none", {}}, TurnsCase{"causal", Mask::causal()},
                    TurnsCase{"window", Mask::window(280, 20)}, TurnsCase{"in_tiles_of_128_queries", {}, 1900},
                    TurnsCase{"map", {}, 330, {0, 0, 1, 0}}, TurnsCase{"map_causal", Mask::causal(), 330, {1, 0, 0, 0}},
                    map_of_64_sequences(), map_of_many_entries("map_of_2500_entries", 2500),
                    map_of_many_entries("map_of_9000_entries", 9000),
                    TurnsCase{"map_mean", {}, 330, {0, 0, 0, 0}, OutScale::per_query()},
                    TurnsCase{"map_in_tiles_of_128_queries", {}, 1900, {0, 2, 2, 0}},
                    TurnsCase{"few_keys", {}, 330, {}, {}, {500, 129, 300, 0}},
                    TurnsCase{"few_keys_causal", Mask::causal(), 330, {}, {}, {330, 64, 300, 90}},
                    TurnsCase{"few_keys_map", {}, 330, {0, 0, 1, 0}, {}, {500, 300, 0, 0}},
                    TurnsCase{"shared_keys", {}, 1000, {}, {}, {700}},
                    TurnsCase{"few_shared_keys", {}, 1000, {}, {}, {200}},
                    TurnsCase{"map_dense", {}, 330, {0, 0, 1, 0}, {}, {900, 900}, true},
                    TurnsCase{"one_consumer_shared_keys", {}, 330, {}, {}, {60}},
                    TurnsCase{"one_consumer", {}, 1900, {}, {}, {64, 64, 64, 64}, true},
                    TurnsCase{"one_consumer_causal", Mask::causal(), 330, {}, {}, {50, 50, 50, 50}, true},
                    TurnsCase{"one_consumer_map", {}, 330, {0, 0, 1, 0}, {}, {64, 64}, true}),
    [](const testing::TestParamInfo<TurnsCase>& tested) { return tested.param.name; });

}  // namespace
}  // namespace gdpa::test
