// In deterministic mode, everything that the bits of a sequence may depend on is the same whatever the rest of the
// batch is: the kernels, the limits by which the device chooses the destination of dQ, and the tiles of the sequence.
// The sequence is alone, first, between others, or last, and the others are shorter or longer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "common/packed_layout.cuh"
#include "common/work.cuh"
#include "gdpa/activation.h"
#include "gdpa/error.h"
#include "gpu/backend.h"
#include "gpu/target.h"
#include "gpu_calls.h"

namespace gdpa::gpu {
namespace {

/// The lengths of the sequences of a batch.
struct Batch {
  std::vector<int64_t> lengths_q, lengths_k;
  std::size_t sequence = 0;  ///< the one whose plans are compared

  int64_t size() const { return static_cast<int64_t>(lengths_q.size()); }
};

int64_t sum(const std::vector<int64_t>& lengths) { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  template <class T>
  T one_of(std::initializer_list<T> values) {
    return std::data(values)[static_cast<std::size_t>(below(static_cast<int64_t>(values.size())))];
  }
  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random_); }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }

  int64_t length() { return one_of<int64_t>({0, 1, 7, 40, 64, 65, 128, 200, 256, 300, 384, 512, 700, 2048, 4000}); }

  /// The sequence alone; first, between and behind others of the same kind of lengths; with many others.
  std::vector<Batch> batches_with(int64_t length_q, int64_t length_k) {
    std::vector<Batch> batches;
    for (const auto& [before, after] :
         {std::pair<int64_t, int64_t>{0, 0}, {0, 1}, {3, 2}, {2, 0}, {0, 40}, {900, 1000}}) {
      Batch batch;
      batch.sequence = static_cast<std::size_t>(before);
      const int64_t longest = one_of<int64_t>({4, 64, 600, 5000});
      for (int64_t b = 0; b < before + 1 + after; ++b) {
        batch.lengths_q.push_back(b == before ? length_q : below(longest));
        batch.lengths_k.push_back(b == before ? length_k : below(longest));
      }
      batches.push_back(batch);
    }
    return batches;
  }

  /// A deterministic problem, without the lengths of its sequences.
  Problem kind() {
    Problem problem;
    problem.deterministic = true;
    problem.direction = one_of({Direction::forward, Direction::backward, Direction::backward});
    problem.device = {DeviceKind::cuda, 0};
    problem.dtype = one_of({DType::bfloat16, DType::bfloat16, DType::float16, DType::float32});
    problem.query_form = one_of({Form::jagged, Form::jagged, Form::dense, Form::shared});
    problem.key_form = one_of({Form::jagged, Form::jagged, Form::dense, Form::shared});
    if (problem.query_form == problem.key_form && problem.query_form == Form::shared) problem.key_form = Form::jagged;
    problem.heads_k = one_of<int64_t>({1, 2, 8});
    problem.heads_q = problem.heads_k * one_of<int64_t>({1, 1, 4});
    problem.head_dim = problem.head_dim_v = one_of<int64_t>({16, 64, 64, 96, 128, 128, 192, 256});
    if (chance(.2)) problem.head_dim_v = one_of<int64_t>({32, 64, 128});
    if (chance(.3)) problem.mask = one_of({Mask{-1, 0}, Mask{100, 20}});
    problem.out_scale = one_of({OutScale::Kind::number, OutScale::Kind::reciprocal_length_q});
    problem.accuracy = one_of({Accuracy::fast, Accuracy::fast, Accuracy::exact});
    if (problem.direction == Direction::forward) {
      if (problem.key_form == Form::dense && chance(.5)) problem.page_rows = one_of<int64_t>({16, 48, 256});
    } else {
      if (chance(.4)) {
        problem.wanted = one_of({WantedGradients{true, false, false}, WantedGradients{false, true, false},
                                 WantedGradients{false, false, true}, WantedGradients{true, true, false}});
      }
      problem.has_batch_map = problem.key_form == Form::jagged && chance(.2);
    }
    problem.has_query_gaps = problem.query_form == Form::jagged && chance(.1);
    problem.has_key_gaps = problem.key_form == Form::jagged && chance(.1);
    return problem;
  }

 private:
  std::mt19937_64 random_;
};

/// `kind` for a batch. A dense side has the lengths of the compared sequence in each entry.
Problem problem_of(const Problem& kind, const Batch& batch) {
  Problem problem = kind;
  problem.tensor_types = static_cast<unsigned>(NumberType::bfloat16);
  problem.batch = batch.size();
  const auto rows = [&](Form form, const std::vector<int64_t>& lengths) {
    const int64_t length = lengths[batch.sequence];
    return form == Form::shared ? length : form == Form::dense ? length * batch.size() : sum(lengths);
  };
  problem.rows_q = rows(kind.query_form, batch.lengths_q);
  problem.rows_k = rows(kind.key_form, batch.lengths_k);
  if (problem.has_batch_map) problem.mapped_entries = std::max<int64_t>(1, batch.size() / 2);
  return problem;
}

constexpr int64_t row_of_slice = 4100;  // not a multiple of 8

/// A function, and the sizes of the tensor that it reads for a batch; none if it reads none.
struct ReadingFunction {
  const char* text;
  std::vector<int64_t> (*sizes)(const Problem& problem);
};

std::vector<int64_t> no_tensor(const Problem&) { return {}; }
std::vector<int64_t> bias_of_entries(const Problem& problem) { return {problem.batch, problem.heads_q, 4096, 4096}; }
/// As long as the sequences on average, in memory for longer ones: `bias[b:b+1, :, :n, :n]` in PyTorch.
std::vector<int64_t> slice_of_bias(const Problem& problem) {
  const auto length = [&](Form form, int64_t rows) {
    return std::clamp<int64_t>(form == Form::shared ? rows : rows / problem.batch, 1, row_of_slice);
  };
  return {problem.batch, problem.heads_q, length(problem.query_form, problem.rows_q),
          length(problem.key_form, problem.rows_k)};
}
std::vector<int64_t> number_of_heads(const Problem& problem) { return {problem.heads_q}; }

Params params_of(const Problem& problem, const ReadingFunction& function) {
  Params params{};
  params.scale = .1;
  BoundTensor& tensor = params.parameters.tensors[0];
  tensor.type = NumberType::bfloat16;
  int64_t stride = 1;
  const std::vector<int64_t> sizes = function.sizes(problem);
  tensor.rank = static_cast<int32_t>(sizes.size());
  for (int axis = tensor.rank; axis-- > 0;) {
    tensor.sizes[axis] = sizes[static_cast<std::size_t>(axis)];
    tensor.strides[axis] = stride;
    stride *= function.sizes == slice_of_bias ? row_of_slice : tensor.sizes[axis];
  }
  return params;
}

Activation activation_of(const Problem& problem, const ReadingFunction& function) {
  return Activation(function.text, {}, std::vector<std::string>(function.sizes(problem).empty() ? 0 : 1, "t"));
}

std::vector<Kernel> kernels_of(const Problem& problem, const ReadingFunction& function, const Gpu& gpu) {
  const Activation activation = activation_of(problem, function);
  std::vector<Kernel> kernels;
  for (const auto& [kernel, ctas] :
       kernels_ahead(problem, params_of(problem, function), activation.function(), gpu, Lengths::these)) {
    // The order of the tiles of keys in the table, which a deterministic call adds up in one order.
    if (kernel.as<KeySchedule>() == nullptr) kernels.push_back(kernel);
  }
  return kernels;
}

std::string descriptions_of(const std::vector<Kernel>& kernels) {
  std::string descriptions;
  for (const Kernel& kernel : kernels) descriptions += kernel.description() + "\n";
  return descriptions;
}

/// The numbers by which the schedule kernel of a Hopper backward chooses the destinations of dQ of a sequence.
std::pair<int, int> destinations_of(const Problem& problem, const ReadingFunction& function, const Gpu& gpu) {
  const TestCall call{problem, activation_of(problem, function), params_of(problem, function), gpu};
  const GpuPlan plan = call.plan();
  if (count_of<KeySchedule>(plan) == 0) return {};
  const auto arguments = arguments_of<KeySchedule>(plan, problem);
  return {arguments.whole_keys, arguments.direct_keys};
}

TEST(BatchInvariantPlan, KernelsDoNotDependOnTheOtherSequences) {
  constexpr ReadingFunction functions[] = {{"gelu", no_tensor},
                                           {"erf(s)", no_tensor},
                                           {"relu", no_tensor},
                                           {"silu(s + t[batch, head, q_idx, kv_idx])", bias_of_entries},
                                           {"silu(s + t[batch, head, q_idx, kv_idx])", slice_of_bias},
                                           {"silu(t * s)", number_of_heads}};
  Draw draw(62);
  int compared = 0;
  for (int round = 0; round < 600; ++round) {
    const Problem kind = draw.kind();
    const ReadingFunction& function = functions[draw.below(std::size(functions))];
    const Gpu gpu = target_of(draw.one_of<std::string>({"sm_90a", "sm_90a", "sm_90a", "sm_80", "sm_120a"})).gpu;
    const std::vector<Batch> batches = draw.batches_with(draw.length(), draw.length());
    try {
      const Problem alone = problem_of(kind, batches.front());
      const std::vector<Kernel> expected = kernels_of(alone, function, gpu);
      for (const Batch& batch : batches) {
        const Problem problem = problem_of(kind, batch);
        const std::vector<Kernel> kernels = kernels_of(problem, function, gpu);
        EXPECT_TRUE(kernels == expected) << "f " << function.text << ", batch " << problem.batch << ", rows "
                                         << problem.rows_q << " and " << problem.rows_k << "\n"
                                         << descriptions_of(kernels) << "alone\n"
                                         << descriptions_of(expected);
        EXPECT_EQ(destinations_of(problem, function, gpu), destinations_of(alone, function, gpu));
        ++compared;
      }
    } catch (const Error& error) {
      // Head dims that are too large for the shared memory of this GPU.
      EXPECT_NE(std::string(error.what()).find("shared memory"), std::string::npos) << error.what();
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(compared, 3000);
}

/// The head, the first row and the rows of both sides of each tile of a sequence, in the order of the device.
using Tile = std::tuple<int, int, int, int>;

std::vector<Tile> tiles_of(const Batch& batch, bool owns_queries, int64_t tile) {
  const auto offsets_of = [](const std::vector<int64_t>& lengths) {
    std::vector<int64_t> offsets(lengths.size() + 1);
    std::partial_sum(lengths.begin(), lengths.end(), offsets.begin() + 1);
    return offsets;
  };
  const std::vector<int64_t> offsets_q = offsets_of(batch.lengths_q), offsets_k = offsets_of(batch.lengths_k);
  CommonArguments arguments{};
  arguments.params.batch = batch.size();
  arguments.params.heads_q = 4;
  arguments.params.heads_k = 2;
  arguments.params.queries = Sequences::cumulative(offsets_q.data(), true);
  arguments.params.keys = Sequences::cumulative(offsets_k.data(), true);
  arguments.packed_rows_q = offsets_q.back();
  arguments.packed_rows_k = offsets_k.back();
  const Owner<PackedLayout> owner =
      owns_queries ? Owner<PackedLayout>{arguments.params.queries, offsets_q.back(), 4, tile, batch.size()}
                   : owner_of_keys<PackedLayout>(arguments, tile, batch.size());
  std::vector<Tile> tiles;
  for (int64_t slot = 0; slot < owner.heads * owner.slots(); ++slot) {
    const Work work = find_work(arguments, owner, owns_queries, slot);
    if (!work.exists || work.entry != static_cast<int64_t>(batch.sequence)) continue;
    tiles.emplace_back(work.head, work.tile, work.queries.count, work.keys.count);
  }
  return tiles;
}

TEST(BatchInvariantPlan, TilesBeginWithTheSequence) {
  Draw draw(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<Batch> batches = draw.batches_with(draw.length(), draw.length());
    batches.pop_back();  // of many sequences
    for (const bool owns_queries : {false, true}) {
      for (const int64_t tile : {64, 128}) {
        const std::vector<Tile> expected = tiles_of(batches.front(), owns_queries, tile);
        for (const Batch& batch : batches) EXPECT_EQ(tiles_of(batch, owns_queries, tile), expected);
      }
    }
  }
}

}  // namespace
}  // namespace gdpa::gpu
