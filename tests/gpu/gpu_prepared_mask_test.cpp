// Prepared masks on a GPU: the same bits as without preparation, in forward and backward, for several calls; correct
// results if the lengths of a call are others; errors if the host sees that a call is another one.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <list>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device.h"
#include "gdpa/gdpa.h"
#include "on_device.h"

namespace gdpa::test {
namespace {

constexpr int64_t heads = 2;

/// Jagged self-attention in bfloat16 with a mask that leaves tiles, and one sequence, empty.
class Example {
 public:
  explicit Example(const std::vector<int32_t>& lengths) : gpu_(Gpu::get()), device_(gpu_, 4096) {
    constexpr int64_t head_dim = 64;
    rows_ = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    std::mt19937_64 random(3);
    for (Strided** const tensor : {&query_, &key_, &value_, &grad_output_}) {
      *tensor = &tensors_.emplace_back(Strided::contiguous(DType::bfloat16, {rows_, heads, head_dim}));
      (*tensor)->fill_normal(random);
    }
    set_lengths(lengths);
    std::vector<int32_t> prefix;
    for (std::size_t b = 0; b < lengths.size(); ++b) prefix.push_back(static_cast<int32_t>(20 * b));
    prefix_ = integers(prefix);
  }

  /// Sets the lengths of the calls that follow. The number of rows stays the same.
  void set_lengths(const std::vector<int32_t>& lengths) {
    std::vector<int32_t> offsets = {0};
    for (const int32_t length : lengths) offsets.push_back(offsets.back() + length);
    offsets_ = integers(offsets);
  }

  Attention attention() {
    Attention attention{.query = device_.input(*query_), .key = device_.input(*key_), .value = device_.input(*value_)};
    attention.cu_seqlens_q = attention.cu_seqlens_k = device_.input(*offsets_);
    attention.activation = Activation("silu");
    attention.mask_expression =
        MaskExpression("(kv_idx < prefix[batch]) & ((q_idx - kv_idx) // 70 != 1)", {}, {"prefix"});
    attention.mask_parameters = {{"prefix", device_.input(*prefix_)}};
    attention.deterministic = true;
    attention.stream = gpu_.stream();
    return attention;
  }

  PreparedMask prepare(const Attention& attention, const PrepareOptions& options = {}) {
    const Workspace memory = device_.workspace(prepared_mask_bytes(attention, options));
    return prepare_mask(attention, memory.data, memory.bytes, options);
  }

  /// The bytes of O, dQ, dK and dV.
  std::vector<std::vector<std::byte>> results(const Attention& attention) {
    std::vector<Strided*> all;
    for (int i = 0; i < 4; ++i) {
      all.push_back(&tensors_.emplace_back(Strided::contiguous(DType::bfloat16, query_->sizes())));
    }
    forward(attention, device_.output(*all[0]));
    backward(attention, device_.input(*grad_output_), device_.output(*all[1]), device_.output(*all[2]),
             device_.output(*all[3]));
    device_.fetch(all);
    std::vector<std::vector<std::byte>> bytes;
    for (const Strided* const one : all) bytes.push_back(one->bytes());
    return bytes;
  }

 private:
  Strided* integers(const std::vector<int32_t>& numbers) {
    Strided& tensor = tensors_.emplace_back(Strided::contiguous(DType::int32, {static_cast<int64_t>(numbers.size())}));
    std::memcpy(tensor.bytes().data(), numbers.data(), numbers.size() * sizeof(int32_t));
    return &tensor;
  }

  const Gpu& gpu_;
  std::list<Strided> tensors_;  ///< device_ refers to them
  OnDevice device_;
  int64_t rows_ = 0;
  Strided *query_ = nullptr, *key_ = nullptr, *value_ = nullptr, *grad_output_ = nullptr, *offsets_ = nullptr,
          *prefix_ = nullptr;
};

class GpuPreparedMask : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }

  static std::string message_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(GpuPreparedMask, GivesTheSameBitsInSeveralCalls) {
  Example example({0, 130, 300, 1, 90});
  Attention attention = example.attention();
  const int64_t bytes = workspace_bytes(attention, Direction::backward);
  const auto expected = example.results(attention);
  attention.prepared_mask = example.prepare(attention);
  EXPECT_LT(workspace_bytes(attention, Direction::backward), bytes) << "the lists are not in the workspace";
  EXPECT_EQ(example.results(attention), expected);
  EXPECT_EQ(example.results(attention), expected);
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const GpuKernel& kernel : explain(attention, direction).kernels) RecordProperty(property_of(kernel.name), 1);
  }
}

TEST_F(GpuPreparedMask, IsNotUsedForSequencesOfOtherLengths) {
  Example example({0, 130, 300, 1, 90});
  const PreparedMask prepared = example.prepare(example.attention());
  // The second sequence has the same number of tiles, the third another one.
  example.set_lengths({0, 120, 50, 261, 90});
  Attention attention = example.attention();
  const auto expected = example.results(attention);
  attention.prepared_mask = prepared;
  EXPECT_EQ(example.results(attention), expected);
}

TEST_F(GpuPreparedMask, IsRefusedByAnotherCall) {
  Example example({0, 130, 300, 1, 90});
  Attention attention = example.attention();
  const PreparedMask forward_only = example.prepare(attention, {.backward = false});
  attention.prepared_mask = example.prepare(attention);
  const auto message = [&](const std::function<void(Attention&)>& change) {
    Attention other = attention;
    change(other);
    return message_of([&] { workspace_bytes(other, Direction::backward); });
  };
  EXPECT_EQ(message([](Attention&) {}), "no error");
  EXPECT_EQ(message([&](Attention& other) {
              other.cu_seqlens_q->sizes[0] = other.cu_seqlens_k->sizes[0] = 5;
              other.mask_parameters[0].value.sizes[0] = 4;
            }),
            "prepared_mask: expected a mask for 4 batch entries, got one for 5; prepare the mask with the arguments of "
            "this call");
  EXPECT_EQ(
      message([](Attention& other) { other.query.sizes[0] = 500; }),
      "prepared_mask: expected a mask for 500 rows of query, got one for 521; prepare the mask with the arguments "
      "of this call");
  EXPECT_EQ(message([](Attention& other) {
              other.mask_expression = MaskExpression("(kv_idx < prefix[batch]) & (kv_idx <= q_idx)", {}, {"prefix"});
            }),
            "prepared_mask: expected the mask of this call, with the same types of tensors, got another mask; prepare "
            "the mask with the arguments of this call");
  EXPECT_NE(message([](Attention& other) {
              other.query.sizes[2] = other.key.sizes[2] = other.value.sizes[2] = 40;
              other.query.strides[1] = other.key.strides[1] = other.value.strides[1] = 33;  // other kernels
            }).find("prepared_mask: expected a mask that is prepared for tiles of "),
            std::string::npos);
  EXPECT_NE(message([&](Attention& other) {
              other.prepared_mask = forward_only;
            }).find("expected a mask that is prepared for tiles of 64 x 128 (backward), got one for tiles of 128 x "),
            std::string::npos);
  EXPECT_EQ(message([](Attention& other) { other.mask_expression = std::nullopt, other.mask_parameters.clear(); }),
            "prepared_mask: expected a mask expression with it, got none; set mask_expression to the prepared one");
  EXPECT_NE(message([](Attention& other) {
              other.prepared_mask->tiles += " 1";
            }).find("prepared_mask: expected the result of prepare_mask of this version of gdpa, got another text"),
            std::string::npos);
  EXPECT_EQ(message_of([&] {
              Attention other = attention;
              other.mask_expression = std::nullopt;
              other.mask_parameters.clear();
              other.mask = Mask::causal();
              prepared_mask_bytes(other);
            }),
            "prepare_mask: expected a mask expression, got none; set mask_expression; a window needs no preparation");
  EXPECT_NE(message_of([&] { prepare_mask(attention, nullptr, 0); }).find("bytes of device memory, got a null pointer"),
            std::string::npos);
}

}  // namespace
}  // namespace gdpa::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
