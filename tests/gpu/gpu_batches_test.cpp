// In deterministic mode, the bits of a sequence, which are its rows of O, dQ, dK and dV, do not depend on the other
// sequences of the batch, nor on its place in the batch: random sequences alone, and in batches of different company.
//
// GDPA_BATCHES_LONGEST is the largest length of a sequence, by default 2500. GDPA_BATCHES_MANY is the number of
// sequences in the largest batch, by default 300, which are more heads than a GPU runs at a time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <numeric>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "device.h"
#include "gdpa/gdpa.h"
#include "on_device.h"
#include "strided.h"

namespace gdpa::test {
namespace {

enum class Layout { packed, dense, gaps, mapped, pages, shared_keys, shared_queries };

constexpr DType bf16 = DType::bfloat16, fp16 = DType::float16, fp32 = DType::float32;

struct BatchCase {
  const char* name;
  DType dtype = bf16;
  int64_t head_dim = 64;
  int64_t head_dim_v = 64;
  int64_t heads_q = 2;
  int64_t heads_k = 2;
  std::string function = "gelu";
  std::string mask = {};  ///< a condition; "causal" and "window" are windows
  Layout layout = Layout::packed;
  OutScale::Kind out_scale = OutScale::Kind::number;
  Accuracy accuracy = Accuracy::fast;
  bool has_infinite_scores = false;  ///< of one sequence of each batch, so that the kernels run a second time
};
std::ostream& operator<<(std::ostream& stream, const BatchCase& test) { return stream << test.name; }

int64_t number_in(const char* variable, int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::atoll(text);
}

bool reads(const std::string& text, const std::string& tensor) { return text.find(tensor + "[") != std::string::npos; }

/// The number of a sequence, which determines its lengths and its elements in every batch.
using Sequence = int;

/// The results of a sequence by name: bytes of its rows.
using Rows = std::map<std::string, std::vector<std::byte>>;

class Batches {
 public:
  explicit Batches(const BatchCase& test) : test_(test) {}

  /// Lengths on both sides of the numbers of rows at which the planner would choose other kernels.
  int64_t length_q(Sequence sequence) const {
    return test_.layout == Layout::shared_queries ? shared_length : length(sequence, 1);
  }
  int64_t length_k(Sequence sequence) const {
    return test_.layout == Layout::shared_keys ? shared_length : length(sequence, 2);
  }

  /// The results of all sequences of a batch, in its order. The sequences of the keys are in another order with a batch
  /// map.
  std::vector<Rows> results(const std::vector<Sequence>& batch) {
    const Gpu& gpu = Gpu::get();
    OnDevice device(gpu, 256);
    tensors_.clear();
    const Side queries = side_of(
        batch, [&](Sequence of) { return length_q(of); }, Layout::shared_queries);
    std::vector<Sequence> of_keys = batch;
    if (test_.layout == Layout::mapped) std::reverse(of_keys.begin(), of_keys.end());
    const Side keys = side_of(
        of_keys, [&](Sequence of) { return length_k(of); }, Layout::shared_keys);

    Attention attention;
    Strided &query = operand(queries, batch, test_.heads_q, test_.head_dim, 3),
            &key = operand(keys, of_keys, test_.heads_k, test_.head_dim, 4),
            &value = operand(keys, of_keys, test_.heads_k, test_.head_dim_v, 5);
    if (test_.has_infinite_scores) make_infinite(query, queries, batch);
    attention.query = device.input(query);
    attention.key = device.input(key);
    attention.value = device.input(value);
    add_offsets(attention, device, queries, keys);
    if (test_.layout == Layout::mapped) {
      std::vector<int64_t> map(batch.size());
      std::iota(map.rbegin(), map.rend(), 0);
      attention.kv_of = integers(device, map, {static_cast<int64_t>(map.size())});
    }
    if (test_.layout == Layout::pages) divide_into_pages(attention, device, key, value, keys);
    add_function(attention, device, batch, queries, keys);
    attention.accuracy = test_.accuracy;
    attention.deterministic = true;
    attention.stream = gpu.stream();

    std::vector<int64_t> output_sizes = query.sizes();
    output_sizes.back() = test_.head_dim_v;
    Side outputs = queries;
    if (test_.layout == Layout::shared_queries) {
      outputs = packed(batch, [&](Sequence) { return shared_length; });
      output_sizes[0] = outputs.rows;
    }
    Strided &output = result(output_sizes), &grad_query = result(query.sizes()), &grad_key = result(key.sizes()),
            &grad_value = result(value.sizes());
    forward(attention, device.output(output));
    const bool has_backward = test_.layout != Layout::pages;
    if (has_backward) {
      Strided& grad_output = operand(outputs, batch, test_.heads_q, test_.head_dim_v, 6, output_sizes);
      backward(attention, device.input(grad_output), device.output(grad_query), device.output(grad_key),
               device.output(grad_value));
    }
    count_kernels(attention, has_backward);
    device.fetch({&output, &grad_query, &grad_key, &grad_value});

    std::vector<Rows> all(batch.size());
    const auto add = [&](const char* name, Strided& of, const Side& side, std::size_t b, std::size_t at) {
      all[b][name] = rows_of(of, side.begins[at], side.lengths[at]);
    };
    for (std::size_t b = 0; b < batch.size(); ++b) {
      const std::size_t of_key = test_.layout == Layout::mapped ? batch.size() - 1 - b : b;
      add("O", output, outputs, b, b);
      if (!has_backward) continue;
      // The gradient of rows that all sequences share is a sum over the batch.
      if (test_.layout != Layout::shared_queries) add("dQ", grad_query, queries, b, b);
      if (test_.layout != Layout::shared_keys) add("dK", grad_key, keys, b, of_key);
      if (test_.layout != Layout::shared_keys) add("dV", grad_value, keys, b, of_key);
    }
    return all;
  }

 private:
  static constexpr int64_t shared_length = 200, page_rows = 48;
  static constexpr std::int64_t axis = 256;  ///< of positions in a bias

  /// The rows of each sequence of one side in an operand.
  struct Side {
    std::vector<int64_t> begins, lengths;
    int64_t rows = 0;
  };

  int64_t length(Sequence sequence, unsigned side) const {
    static const int64_t longest = number_in("GDPA_BATCHES_LONGEST", 2500);
    if (test_.layout == Layout::dense) return std::min<int64_t>(side == 1 ? 70 : 300, longest);
    std::mt19937_64 random(static_cast<std::uint64_t>(sequence) * 4 + side);
    constexpr int few = 8;  // sequences of any length; all others are short
    if (sequence >= few) return std::uniform_int_distribution<int64_t>(0, 20)(random);
    const double power = std::uniform_real_distribution<>(0, std::log2(static_cast<double>(longest)))(random);
    return static_cast<int64_t>(std::exp2(power));
  }

  template <class Length>
  static Side packed(const std::vector<Sequence>& batch, const Length& length, int64_t gap = 0) {
    Side side;
    for (const Sequence sequence : batch) {
      side.begins.push_back(side.rows + gap);
      side.lengths.push_back(length(sequence));
      side.rows = side.begins.back() + side.lengths.back();
    }
    return side;
  }
  template <class Length>
  Side side_of(const std::vector<Sequence>& batch, const Length& length, Layout shared) const {
    if (test_.layout != shared) return packed(batch, length, test_.layout == Layout::gaps ? 3 : 0);
    return {std::vector<int64_t>(batch.size(), 0), std::vector<int64_t>(batch.size(), shared_length), shared_length};
  }

  Strided& result(const std::vector<int64_t>& sizes) {
    return tensors_.emplace_back(Strided::contiguous(test_.dtype, sizes));
  }

  /// An operand whose rows depend on the sequence and on `kind`. Rows that no sequence has are NaN.
  Strided& operand(const Side& side, const std::vector<Sequence>& batch, int64_t heads, int64_t width, unsigned kind,
                   std::vector<int64_t> sizes = {}) {
    if (sizes.empty()) {
      sizes = {side.rows, heads, width};
      const auto entries = static_cast<int64_t>(batch.size());
      if (test_.layout == Layout::dense) sizes = {entries, side.rows / entries, heads, width};
    }
    Strided& tensor = result(sizes);
    const auto bytes_of_row = static_cast<std::size_t>(heads * width * size_in_bytes(test_.dtype));
    for (std::size_t b = 0; b < batch.size(); ++b) {
      std::mt19937_64 random(is_of_shared(kind) ? kind : static_cast<std::uint64_t>(batch[b] + 1) * 8 + kind);
      Strided rows = Strided::contiguous(test_.dtype, {side.lengths[b], heads, width});
      rows.fill_normal(random);
      std::memcpy(tensor.bytes().data() + static_cast<std::size_t>(side.begins[b]) * bytes_of_row, rows.bytes().data(),
                  static_cast<std::size_t>(side.lengths[b]) * bytes_of_row);
    }
    return tensor;
  }
  bool is_of_shared(unsigned kind) const {
    return (test_.layout == Layout::shared_queries && kind == 3) ||
           (test_.layout == Layout::shared_keys && (kind == 4 || kind == 5));
  }

  /// The first sequence of a batch of several has infinite scores, which need guards.
  void make_infinite(Strided& query, const Side& queries, const std::vector<Sequence>& batch) const {
    if (batch.size() < 2) return;
    const auto bytes_of_row = static_cast<std::size_t>(test_.heads_q * test_.head_dim * size_in_bytes(test_.dtype));
    for (int64_t element = 0; element < queries.lengths[0] * test_.heads_q * test_.head_dim; ++element) {
      from_double(test_.dtype, 3e38,
                  query.bytes().data() + static_cast<std::size_t>(queries.begins[0]) * bytes_of_row +
                      static_cast<std::size_t>(element * size_in_bytes(test_.dtype)));
    }
  }

  TensorView integers(OnDevice& device, const std::vector<int64_t>& numbers, const std::vector<int64_t>& sizes) {
    Strided& tensor = tensors_.emplace_back(Strided::contiguous(DType::int64, sizes));
    if (!numbers.empty()) std::memcpy(tensor.bytes().data(), numbers.data(), numbers.size() * sizeof(int64_t));
    return device.input(tensor);
  }
  TensorView floats(OnDevice& device, const std::vector<float>& numbers, const std::vector<int64_t>& sizes) {
    Strided& tensor = tensors_.emplace_back(Strided::contiguous(DType::float32, sizes));
    if (!numbers.empty()) std::memcpy(tensor.bytes().data(), numbers.data(), numbers.size() * sizeof(float));
    return device.input(tensor);
  }

  void add_offsets(Attention& attention, OnDevice& device, const Side& queries, const Side& keys) {
    if (test_.layout == Layout::dense) return;
    const auto entries = static_cast<int64_t>(queries.begins.size());
    const bool has_gaps = test_.layout == Layout::gaps;
    const auto offsets = [&](const Side& side) {
      std::vector<int64_t> numbers;
      for (std::size_t b = 0; b < side.begins.size(); ++b) {
        numbers.push_back(side.begins[b]);
        if (has_gaps) numbers.push_back(side.begins[b] + side.lengths[b]);
      }
      if (has_gaps) return integers(device, numbers, {entries, 2});
      numbers.push_back(side.rows);
      return integers(device, numbers, {entries + 1});
    };
    if (test_.layout != Layout::shared_queries)
      (has_gaps ? attention.seq_offsets_q : attention.cu_seqlens_q) = offsets(queries);
    if (test_.layout == Layout::shared_keys || test_.layout == Layout::pages) return;
    (has_gaps ? attention.seq_offsets_k : attention.cu_seqlens_k) = offsets(keys);
  }

  /// Divides the keys into pages. The first page has no rows of any sequence.
  void divide_into_pages(Attention& attention, OnDevice& device, const Strided& key, const Strided& value,
                         const Side& keys) {
    int64_t pages = 1, columns = 1;
    for (const int64_t rows : keys.lengths) columns = std::max(columns, (rows + page_rows - 1) / page_rows);
    std::vector<int64_t> table(keys.lengths.size() * static_cast<std::size_t>(columns), 0);
    const auto bytes_of = [&](const Strided& of) {
      return static_cast<std::size_t>(of.sizes()[1] * of.sizes()[2] * size_in_bytes(test_.dtype));
    };
    std::vector<std::byte> paged[2];
    const Strided* const operands[2] = {&key, &value};
    for (int n = 0; n < 2; ++n) paged[n].resize(static_cast<std::size_t>(page_rows) * bytes_of(*operands[n]));
    for (std::size_t b = 0; b < keys.lengths.size(); ++b) {
      for (int64_t first = 0; first < keys.lengths[b]; first += page_rows) {
        table[b * static_cast<std::size_t>(columns) + static_cast<std::size_t>(first / page_rows)] = pages++;
        const int64_t count = std::min(page_rows, keys.lengths[b] - first);
        for (int n = 0; n < 2; ++n) {
          const std::size_t row = bytes_of(*operands[n]);
          const std::byte* const from =
              operands[n]->bytes().data() + static_cast<std::size_t>(keys.begins[b] + first) * row;
          paged[n].insert(paged[n].end(), from, from + static_cast<std::size_t>(count) * row);
          paged[n].resize(static_cast<std::size_t>(pages * page_rows) * row);
        }
      }
    }
    TensorView* const views[2] = {&attention.key, &attention.value};
    for (int n = 0; n < 2; ++n) {
      Strided& tensor = result({pages, page_rows, operands[n]->sizes()[1], operands[n]->sizes()[2]});
      tensor.bytes() = paged[n];
      *views[n] = device.input(tensor);
    }
    attention.block_table = integers(device, table, {static_cast<int64_t>(keys.lengths.size()), columns});
    attention.seqused_k = integers(device, keys.lengths, {static_cast<int64_t>(keys.lengths.size())});
  }

  /// The function with its tensors, the mask and out_scale.
  void add_function(Attention& attention, OnDevice& device, const std::vector<Sequence>& batch, const Side& queries,
                    const Side& keys) {
    const auto entries = static_cast<int64_t>(batch.size());
    std::vector<std::string> names, names_of_mask;
    const auto add = [&](const char* name, const TensorView& tensor) {
      if (reads(test_.function, name)) {
        names.emplace_back(name);
        attention.parameters.push_back({name, tensor});
      }
      if (reads(test_.mask, name)) {
        names_of_mask.emplace_back(name);
        attention.mask_parameters.push_back({name, tensor});
      }
    };
    const auto is_read = [&](const char* name) { return reads(test_.function, name) || reads(test_.mask, name); };
    std::mt19937_64 random(9);
    std::normal_distribution<float> normal;
    const auto drawn = [&](int64_t count) {
      std::vector<float> numbers(static_cast<std::size_t>(count));
      for (float& number : numbers) number = normal(random);
      return numbers;
    };
    // Times that rise along each sequence; 0 in rows without a sequence. In most tiles, all differences of the times of
    // queries and of keys are in one bucket.
    const auto times = [&](const Side& side, const std::vector<Sequence>& of, std::uint64_t seed) {
      std::vector<int64_t> numbers(static_cast<std::size_t>(side.rows));
      for (std::size_t b = 0; b < of.size(); ++b) {
        std::mt19937_64 own(static_cast<std::uint64_t>(of[b]) * 2 + seed);
        int64_t time = 1'000'000 - 100'000 * static_cast<int64_t>(seed);
        for (int64_t row = 0; row < side.lengths[b]; ++row) {
          time += std::uniform_int_distribution<int64_t>(0, 10)(own);
          numbers[static_cast<std::size_t>(side.begins[b] + row)] = time;
        }
      }
      return numbers;
    };
    if (is_read("t_q")) add("t_q", integers(device, times(queries, batch, 0), {queries.rows}));
    if (is_read("t_k")) add("t_k", integers(device, times(keys, batch, 1), {keys.rows}));
    // The same times with an axis of positions, which ends with zeros in sequences that are shorter than the longest.
    const auto padded_times = [&](const Side& side, const std::vector<int64_t>& packed_times) {
      const int64_t longest = std::max<int64_t>(1, *std::max_element(side.lengths.begin(), side.lengths.end()));
      std::vector<int64_t> numbers(static_cast<std::size_t>(entries * longest));
      for (std::size_t b = 0; b < batch.size(); ++b) {
        const auto first = packed_times.begin() + side.begins[b];
        std::copy(first, first + side.lengths[b], numbers.begin() + static_cast<std::ptrdiff_t>(b) * longest);
      }
      return integers(device, numbers, {entries, longest});
    };
    if (is_read("padded_q")) add("padded_q", padded_times(queries, times(queries, batch, 0)));
    if (is_read("padded_k")) add("padded_k", padded_times(keys, times(keys, batch, 1)));
    if (is_read("of_pairs")) add("of_pairs", device.input(pairs_of(batch, queries, keys)));
    if (is_read("bias")) add("bias", floats(device, drawn(test_.heads_q * axis * axis), {test_.heads_q, axis, axis}));
    if (is_read("table")) add("table", floats(device, drawn(test_.heads_q * 64), {test_.heads_q, 64}));
    if (is_read("of_entry")) {
      std::vector<float> numbers;
      for (const Sequence sequence : batch) numbers.push_back(static_cast<float>(sequence % 5) / 4);
      add("of_entry", floats(device, numbers, {entries}));
    }
    if (is_read("prefix")) {
      std::vector<int64_t> numbers;
      for (const Sequence sequence : batch) numbers.push_back(sequence * 37 % 150);
      add("prefix", integers(device, numbers, {entries}));
    }
    attention.activation = Activation(test_.function, {}, names);
    if (test_.mask == "causal") {
      attention.mask = Mask::causal();
    } else if (test_.mask == "window") {
      attention.mask = Mask::window(100, 20);
    } else if (!test_.mask.empty()) {
      attention.mask_expression = MaskExpression(test_.mask, {}, names_of_mask);
    }
    if (test_.out_scale == OutScale::Kind::reciprocal_length_q) attention.out_scale = OutScale::per_query();
    if (test_.out_scale == OutScale::Kind::per_batch) {
      std::vector<float> numbers;
      for (const Sequence sequence : batch) numbers.push_back(static_cast<float>(sequence % 3 + 1) / 7);
      attention.out_scale = OutScale::of_batch(floats(device, numbers, {entries}));
    }
  }

  /// A bias of each entry, whose positions end with the longest sequence or before. Its rows have the same distance in
  /// every batch, as slices of a longer bias.
  const Strided& pairs_of(const std::vector<Sequence>& batch, const Side& queries, const Side& keys) {
    constexpr int64_t longest = 128, apart = 136;
    const auto entries = static_cast<int64_t>(batch.size());
    const auto size_of = [&](const Side& side) {
      return std::clamp<int64_t>(*std::max_element(side.lengths.begin(), side.lengths.end()), 1, longest);
    };
    const std::vector<int64_t> sizes = {entries, test_.heads_q, size_of(queries), size_of(keys)};
    const std::vector<int64_t> strides = {test_.heads_q * longest * apart, longest * apart, apart, 1};
    Strided& tensor = tensors_.emplace_back(test_.dtype, sizes, strides, 0, entries * strides[0]);
    int64_t element = 0;
    tensor.for_each([&](std::byte* at) {
      const int64_t key = element % sizes[3], query = element / sizes[3] % sizes[2],
                    rest = element / sizes[3] / sizes[2];
      const int64_t of_sequence = batch[static_cast<std::size_t>(rest / test_.heads_q)];
      const int64_t number = of_sequence * 7 + rest % test_.heads_q * 5 + query * 3 + key;
      from_double(test_.dtype, static_cast<double>(number % 31 - 15) / 16, at);
      ++element;
    });
    return tensor;
  }

  static void count_kernels(const Attention& attention, bool has_backward) {
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      if (direction == Direction::backward && !has_backward) continue;
      for (const GpuKernel& kernel : explain(attention, direction).kernels) {
        testing::Test::RecordProperty(property_of(kernel.name), 1);
      }
    }
  }

  static std::vector<std::byte> rows_of(const Strided& of, int64_t begin, int64_t count) {
    const std::vector<int64_t>& sizes = of.sizes();
    const int64_t row = sizes[sizes.size() - 2] * sizes.back() * size_in_bytes(of.dtype());
    const auto first = of.bytes().begin() + begin * row;
    return {first, first + count * row};
  }

  const BatchCase& test_;
  std::list<Strided> tensors_;  ///< of one call
};

class GpuBatches : public testing::TestWithParam<BatchCase> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(GpuBatches, DoNotChangeTheBitsOfASequence) {
  const BatchCase& test = GetParam();
  Batches batches(test);
  std::vector<Sequence> many(static_cast<std::size_t>(number_in("GDPA_BATCHES_MANY", 300)));
  std::iota(many.begin(), many.end(), 7);
  many.push_back(2);
  std::map<Sequence, Rows> alone;
  bool has_numbers = false;
  for (const std::vector<Sequence>& batch :
       std::vector<std::vector<Sequence>>{{0, 1}, {2, 3, 4, 5, 6, 7}, {7, 6, 0, 2}, many}) {
    const std::vector<Rows> results = batches.results(batch);
    for (std::size_t b = test.has_infinite_scores ? 1 : 0; b < batch.size(); ++b) {
      const Sequence sequence = batch[b];
      if (!alone.contains(sequence)) alone[sequence] = batches.results({sequence}).front();
      for (const auto& [name, rows] : results[b]) {
        EXPECT_TRUE(rows == alone[sequence][name])
            << name << " of sequence " << b << " of " << batch.size() << ", with " << batches.length_q(sequence)
            << " queries and " << batches.length_k(sequence) << " keys";
        has_numbers |= std::any_of(rows.begin(), rows.end(), [](std::byte byte) { return byte != std::byte{0}; });
      }
    }
  }
  EXPECT_TRUE(has_numbers) << "all results are 0";
}

constexpr const char* buckets = "silu(s + table[head, clamp(floor(log2(1 + abs(t_q[q_row] - t_k[kv_row]))), 0, 63)])";
constexpr const char* padded_buckets =
    "silu(s + table[head, clamp(floor(log2(1 + abs(padded_q[batch, q_idx] - padded_k[batch, kv_idx]))), 0, 63)])";
constexpr const char* by_position = "silu(s + bias[head, q_idx, kv_idx])";
constexpr const char* by_pair = "silu(s + of_pairs[batch, head, q_idx, kv_idx])";
constexpr const char* by_distance = "silu(s + of_entry[batch] * table[head, clamp(q_idx - kv_idx + 32, 0, 63)])";
constexpr const char* condition = "(kv_idx < prefix[batch]) | ((q_idx - kv_idx) // 70 % 2 == 0)";
constexpr OutScale::Kind per_query = OutScale::Kind::reciprocal_length_q, per_batch = OutScale::Kind::per_batch;

INSTANTIATE_TEST_SUITE_P(
    Drawn, GpuBatches,
    testing::Values(
        BatchCase{"bfloat16_64"}, BatchCase{"bfloat16_64_causal", bf16, 64, 64, 4, 2, "silu", "causal"},
        BatchCase{"bfloat16_128", bf16, 128, 128, 2, 2, "gelu_tanh"},
        BatchCase{"bfloat16_128_32_window", bf16, 128, 32, 2, 1, "silu", "window"},
        BatchCase{"bfloat16_192", bf16, 192, 192}, BatchCase{"bfloat16_48_128", bf16, 48, 128, 4, 1},
        BatchCase{"bfloat16_64_exact", bf16, 64, 64, 2, 2, "gelu", "", Layout::packed, per_query, Accuracy::exact},
        BatchCase{"bfloat16_64_infinite", bf16, 64, 64, 2, 2, "gelu_tanh", "", Layout::packed, per_batch,
                  Accuracy::fast, true},
        BatchCase{"float16_64", fp16, 64, 64, 2, 2, "relu", "", Layout::packed, per_batch},
        BatchCase{"float16_96_condition", fp16, 96, 96, 4, 2, "silu", condition}, BatchCase{"float32_64", fp32},
        BatchCase{"float32_128_causal", fp32, 128, 128, 2, 1, "silu", "causal"},
        BatchCase{"buckets_64", bf16, 64, 64, 2, 2, buckets},
        BatchCase{"buckets_128_causal", bf16, 128, 128, 2, 2, buckets, "causal"},
        BatchCase{"padded_buckets_64", bf16, 64, 64, 2, 2, padded_buckets},
        BatchCase{"bias_64", bf16, 64, 64, 2, 2, by_position}, BatchCase{"pairs_64", bf16, 64, 64, 2, 2, by_pair},
        BatchCase{"distance_64", bf16, 64, 64, 4, 2, by_distance, condition},
        BatchCase{"distance_float32", fp32, 32, 32, 2, 2, by_distance},
        BatchCase{"dense_64", bf16, 64, 64, 2, 2, "gelu", "", Layout::dense},
        BatchCase{"gaps_64", bf16, 64, 64, 2, 2, "gelu", "causal", Layout::gaps},
        BatchCase{"mapped_64", bf16, 64, 64, 2, 2, "gelu", "", Layout::mapped, per_batch},
        BatchCase{"mapped_128_causal", bf16, 128, 128, 2, 2, "silu", "causal", Layout::mapped},
        BatchCase{"pages_128", bf16, 128, 128, 4, 2, "silu", "causal", Layout::pages},
        BatchCase{"shared_keys_64", bf16, 64, 64, 2, 2, "gelu", "", Layout::shared_keys},
        BatchCase{"shared_keys_128_window", bf16, 128, 128, 2, 2, "silu", "window", Layout::shared_keys},
        BatchCase{"shared_queries_64", bf16, 64, 64, 2, 2, "gelu", "", Layout::shared_queries}),
    [](const testing::TestParamInfo<BatchCase>& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace gdpa::test
