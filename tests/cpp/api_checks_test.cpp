// The checks refuse every wrong argument before anything is written. The message states the expected value, the given
// value and a remedy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/checks.h"
#include "api/message.h"
#include "api/norm_checks.h"
#include "fmt/format.h"
#include "gdpa/gdpa.h"
#include "plan/prepared_tiles.h"

namespace gdpa {
namespace {

constexpr float poison = 12345.0F;

/// A small correct call, jagged on both sides, that each test spoils in one place.
struct Call {
  static constexpr int64_t tokens_q = 5, tokens_k = 6, heads_q = 4, heads_k = 2, head_dim = 8, head_dim_v = 16;

  std::vector<float> query = std::vector<float>(tokens_q * heads_q * head_dim, 1.0F);
  std::vector<float> key = std::vector<float>(tokens_k * heads_k * head_dim, 1.0F);
  std::vector<float> value = std::vector<float>(tokens_k * heads_k * head_dim_v, 1.0F);
  std::vector<float> output = std::vector<float>(tokens_q * heads_q * head_dim_v, poison);
  std::vector<float> grad_query = std::vector<float>(query.size(), poison);
  std::vector<float> grad_key = std::vector<float>(key.size(), poison);
  std::vector<float> grad_value = std::vector<float>(value.size(), poison);
  std::vector<int32_t> offsets_q = {0, 2, 5};
  std::vector<int64_t> offsets_k = {0, 6, 6};
  std::vector<double> numbers = {1.0, 2.0};

  Attention attention;
  MutableTensorView output_view;
  TensorView grad_output_view;
  MutableTensorView grad_query_view, grad_key_view, grad_value_view;
  std::vector<int64_t> gaps_q = {3, 5, 0, 2}, gaps_k = {0, 4, 2, 6};
  std::vector<int32_t> map = {1, 1};

  Call() {
    attention.query = TensorView::contiguous(query.data(), DType::float32, {tokens_q, heads_q, head_dim});
    attention.key = TensorView::contiguous(key.data(), DType::float32, {tokens_k, heads_k, head_dim});
    attention.value = TensorView::contiguous(value.data(), DType::float32, {tokens_k, heads_k, head_dim_v});
    attention.cu_seqlens_q = TensorView::contiguous(offsets_q.data(), DType::int32, {3});
    attention.cu_seqlens_k = TensorView::contiguous(offsets_k.data(), DType::int64, {3});
    attention.out_scale = OutScale::of_batch(TensorView::contiguous(numbers.data(), DType::float64, {2}));
    output_view = MutableTensorView::contiguous(output.data(), DType::float32, {tokens_q, heads_q, head_dim_v});
    grad_output_view =
        TensorView::contiguous(numbers_like_output.data(), DType::float32, {tokens_q, heads_q, head_dim_v});
    grad_query_view = MutableTensorView::contiguous(grad_query.data(), DType::float32, {tokens_q, heads_q, head_dim});
    grad_key_view = MutableTensorView::contiguous(grad_key.data(), DType::float32, {tokens_k, heads_k, head_dim});
    grad_value_view = MutableTensorView::contiguous(grad_value.data(), DType::float32, {tokens_k, heads_k, head_dim_v});
  }

  /// Without cumulative lengths: operands of rank 3 are shared by the batch, and operands of rank 4 are dense.
  void drop_offsets() {
    attention.cu_seqlens_q.reset();
    attention.cu_seqlens_k.reset();
  }

  TensorView view_of_gaps(const std::vector<int64_t>& gaps) const {
    return TensorView::contiguous(gaps.data(), DType::int64, {2, 2});
  }

  /// Begins and ends instead of cumulative lengths.
  void have_gaps() {
    drop_offsets();
    attention.seq_offsets_q = view_of_gaps(gaps_q);
    attention.seq_offsets_k = view_of_gaps(gaps_k);
  }

  void have_map() {
    attention.kv_of = TensorView::contiguous(map.data(), DType::int32, {static_cast<int64_t>(map.size())});
  }

  /// The checks of a plan do not read the operands.
  void move_operands_to_gpu() {
    for (TensorView* view : {&attention.query, &attention.key, &attention.value}) view->device = {DeviceKind::cuda, 0};
  }

  void run_forward() { forward(attention, output_view); }
  void run_backward() { backward(attention, grad_output_view, grad_query_view, grad_key_view, grad_value_view); }

 private:
  std::vector<float> numbers_like_output = std::vector<float>(output.size(), 1.0F);
};

struct Mistake {
  std::string name;
  std::function<void(Call&)> spoil;
  ErrorKind kind;
  std::string message;
};

const double nan = std::numeric_limits<double>::quiet_NaN();

const std::vector<Mistake>& input_mistakes() {
  static const std::vector<Mistake> mistakes = {
      {"query_rank", [](Call& c) { c.attention.query.rank = 2; }, ErrorKind::value,
       "query: expected rank 3, (tokens, heads, head_dim), or rank 4, (batch, length, heads, head_dim), got rank 2 "
       "with shape (5, 4); reshape it"},
      {"integer_query", [](Call& c) { c.attention.query.dtype = DType::int32; }, ErrorKind::type,
       "query: expected dtype float32, float64, bfloat16 or float16, got int32; convert it"},
      {"other_dtype", [](Call& c) { c.attention.value.dtype = DType::bfloat16; }, ErrorKind::type,
       "value: expected dtype float32, as the query's, got bfloat16; convert all operands to one dtype"},
      {"other_device",
       [](Call& c) {
         c.attention.key.device = {DeviceKind::cuda, 1};
       },
       ErrorKind::type, "key: expected device cpu, as the query's, got cuda:1; move all tensors to one device"},
      {"null_operand", [](Call& c) { c.attention.key.data = nullptr; }, ErrorKind::value,
       "key: expected a pointer to its elements, got null; pass the address of the first element"},
      {"negative_size", [](Call& c) { c.attention.key.sizes[0] = -6; }, ErrorKind::value,
       "key: expected sizes of 0 or more, got (-6, 2, 8); correct the shape"},
      {"no_heads", [](Call& c) { c.attention.key.sizes[1] = 0; }, ErrorKind::value,
       "key: expected at least one head and a head_dim of 1 or more, got (6, 0, 8); correct the shape"},
      {"last_stride", [](Call& c) { c.attention.query.strides[2] = 2; }, ErrorKind::value,
       "query: expected a last dimension of stride 1, got stride 2; make it contiguous in the last dimension, e.g. by "
       ".contiguous()"},
      {"add_query_with_another_head_dim_v", [](Call& c) { c.attention.add_query = true; }, ErrorKind::value,
       "add_query: expected value with the query's head_dim 8, got 16; leave it out, and add a projection of the query "
       "to the output"},
      {"head_dim_of_key", [](Call& c) { c.attention.key.sizes[2] = 4; }, ErrorKind::value,
       "key: expected head_dim 8, as the query's, got 4; make the two agree"},
      {"tokens_of_value", [](Call& c) { c.attention.value.sizes[0] = 5; }, ErrorKind::value,
       "value: expected in every dimension but the last a size of 6, as the key's, got 5; make the two agree"},
      {"group_of_heads", [](Call& c) { c.attention.query.sizes[1] = 3; }, ErrorKind::value,
       "query: expected heads in a multiple of the 2 heads of key and value, got 3; repeat or drop heads until one "
       "divides the other"},
      {"offsets_type", [](Call& c) { c.attention.cu_seqlens_q->dtype = DType::float32; }, ErrorKind::type,
       "cu_seqlens_q: expected dtype int32 or int64, got float32; convert it"},
      {"offsets_empty", [](Call& c) { c.attention.cu_seqlens_k->sizes[0] = 0; }, ErrorKind::value,
       "cu_seqlens_k: expected rank 1 and batch + 1 numbers, got rank 1 with shape (0,); pass cumulative lengths: 0, "
       "then the running sum"},
      {"offsets_stride", [](Call& c) { c.attention.cu_seqlens_k->strides[0] = 2; }, ErrorKind::value,
       "cu_seqlens_k: expected stride 1, got stride 2; make it contiguous"},
      {"offsets_start",
       [](Call& c) {
         c.offsets_q = {-1, 2, 5};
       },
       ErrorKind::value,
       "cu_seqlens_q: expected 0 or more as the first number, got -1; pass cumulative lengths, which count rows"},
      {"offsets_fall",
       [](Call& c) {
         c.offsets_k = {0, 6, 5};
       },
       ErrorKind::value,
       "cu_seqlens_k: expected numbers that never fall, got 5 after 6 at index 2; pass cumulative lengths, not "
       "lengths"},
      {"both_kinds_of_offsets", [](Call& c) { c.attention.seq_offsets_k = c.view_of_gaps(c.gaps_k); }, ErrorKind::value,
       "seq_offsets_k: expected no cu_seqlens_k with it, got both; leave one of them out"},
      {"gaps_shape",
       [](Call& c) {
         c.have_gaps();
         c.attention.seq_offsets_q->sizes[1] = 3;
       },
       ErrorKind::value,
       "seq_offsets_q: expected shape (batch, 2), the begin and the end of each sequence, got rank 2 with shape (2, "
       "3); "
       "correct the shape"},
      {"gaps_reversed",
       [](Call& c) {
         c.gaps_k = {4, 2, 0, 1};
         c.have_gaps();
       },
       ErrorKind::value,
       "seq_offsets_k: expected 0 <= begin <= end <= 6, the tokens of key, got begin 4 and end 2 at index 0; correct "
       "the "
       "numbers"},
      {"gaps_past_the_end",
       [](Call& c) {
         c.gaps_q = {0, 1, 3, 6};
         c.have_gaps();
       },
       ErrorKind::value,
       "seq_offsets_q: expected 0 <= begin <= end <= 5, the tokens of query, got begin 3 and end 6 at index 1; correct "
       "the numbers"},
      {"gaps_with_common_queries",
       [](Call& c) {
         c.gaps_q = {2, 5, 0, 3};
         c.have_gaps();
       },
       ErrorKind::value,
       "seq_offsets_q: expected sequences without common queries, got row 2 in sequences 1 and 0; copy the queries "
       "that "
       "two sequences have"},
      {"map_length",
       [](Call& c) {
         c.map = {0};
         c.have_map();
       },
       ErrorKind::value,
       "kv_of: expected rank 1 and 2 numbers, one for each query entry, got rank 1 with shape (1,); correct the shape"},
      {"map_out_of_range",
       [](Call& c) {
         c.map = {1, 2};
         c.have_map();
       },
       ErrorKind::value,
       "kv_of: expected numbers from 0 to 1, the entries of the keys, got 2 at index 1; correct the number"},
      {"map_of_shared_keys",
       [](Call& c) {
         c.attention.cu_seqlens_k.reset();
         c.have_map();
       },
       ErrorKind::value,
       "kv_of: expected keys with batch entries, got keys that the whole batch shares; leave kv_of out, or pass keys "
       "of "
       "rank 4 or with lengths"},
      {"offsets_past_the_end",
       [](Call& c) {
         c.offsets_q = {0, 2, 6};
       },
       ErrorKind::value,
       "cu_seqlens_q: expected numbers up to 5, the tokens of query, got 6 at the end; make the lengths add up to the "
       "tokens at most"},
      {"other_batch", [](Call& c) { c.attention.cu_seqlens_k->sizes[0] = 2; }, ErrorKind::value,
       "cu_seqlens_k: expected 2 batch entries, as the query side has, got 1; describe the same batch on both sides"},
      {"scale_nan", [](Call& c) { c.attention.scale = nan; }, ErrorKind::value,
       "scale: expected a finite number, got nan; pass a finite number"},
      {"out_scale_nan", [](Call& c) { c.attention.out_scale = OutScale::of(nan); }, ErrorKind::value,
       "out_scale: expected a finite number, got nan; pass a finite number"},
      {"out_scale_length", [](Call& c) { c.attention.out_scale.per_batch.sizes[0] = 1; }, ErrorKind::value,
       "out_scale: expected rank 1 and 2 numbers, one for each batch entry, got rank 1 with shape (1,); correct the "
       "shape"},
      {"out_scale_entry", [](Call& c) { c.numbers[1] = nan; }, ErrorKind::value,
       "out_scale: expected a finite number, got nan; pass a finite number"},
      {"out_scale_of_other_rows",
       [](Call& c) {
         c.attention.out_scale = OutScale::of_rows(TensorView::contiguous(c.numbers.data(), DType::float64, {2}));
       },
       ErrorKind::value,
       "out_scale: expected rank 1 and 5 numbers, one for each row of the query, got rank 1 with shape (2,); correct "
       "the shape"},
      {"out_scale_row",
       [](Call& c) {
         static const std::vector<float> rows = {1, 1, 1, static_cast<float>(nan), 1};
         c.attention.out_scale = OutScale::of_rows(TensorView::contiguous(rows.data(), DType::float32, {5}));
       },
       ErrorKind::value, "out_scale: expected a finite number, got nan; pass a finite number"},
      {"window", [](Call& c) { c.attention.mask.left = -2; }, ErrorKind::value,
       "window: expected sides of 0 or more, or -1 for no bound, got -2; correct the window"},
      {"window_on_the_right", [](Call& c) { c.attention.mask.right = -3; }, ErrorKind::value,
       "window: expected sides of 0 or more, or -1 for no bound, got -3; correct the window"},
      {"threads", [](Call& c) { c.attention.threads = -1; }, ErrorKind::value,
       "threads: expected 0 for all processors, or a number of threads, got -1; correct the number"},
      {"workspace",
       [](Call& c) {
         alignas(256) static std::byte memory[512];
         c.attention.workspace = {memory + 8, 256};
       },
       ErrorKind::value,
       "workspace: expected an address that is a multiple of 256 bytes, got a remainder of 8; pass the address that "
       "the "
       "device's allocator returned"},
  };
  return mistakes;
}

void expect_refused(const std::function<void()>& run, const Mistake& mistake) {
  try {
    run();
    ADD_FAILURE() << mistake.name << " was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), mistake.message);
    EXPECT_EQ(error.kind(), mistake.kind) << mistake.name;
  }
}

bool is_untouched(const std::vector<float>& values) {
  for (const float value : values) {
    if (value != poison) return false;
  }
  return true;
}

TEST(Checks, RefuseEveryWrongInputInBothDirectionsAndWriteNothing) {
  for (const Mistake& mistake : input_mistakes()) {
    Call call;
    mistake.spoil(call);
    expect_refused([&] { call.run_forward(); }, mistake);
    expect_refused([&] { call.run_backward(); }, mistake);
    EXPECT_TRUE(is_untouched(call.output) && is_untouched(call.grad_query) && is_untouched(call.grad_key) &&
                is_untouched(call.grad_value))
        << mistake.name;
  }
}

/// A call with every tensor that the C++ API takes has two forms: sequences without gaps, and with gaps and a batch
/// map. Each view of the call, with the name that a message has for it.
struct NamedDevice {
  std::string who;
  Device* device;
};

struct CallWithTensors : Call {
  std::vector<float> numbers_of_head = std::vector<float>(heads_q, 1.0F), numbers_of_keys = {1, 2, 3},
                     grad_of_head = std::vector<float>(heads_q), grad_of_keys = std::vector<float>(3),
                     scales_of_rows = std::vector<float>(tokens_q, 1.0F), grad_of_rows = std::vector<float>(tokens_q);
  std::vector<int32_t> lengths_of_mask = {1, 2}, begins_of_output = {0, 2};
  std::vector<ParameterGradient> gradients;
  MutableTensorView grad_out_scale;

  explicit CallWithTensors(bool has_gaps) {
    attention.activation = Activation("a * s + t[clamp(kv_idx, 0, 2)]", {}, {"a", "t"});
    attention.parameters = {{"a", TensorView::contiguous(numbers_of_head.data(), DType::float32, {heads_q})},
                            {"t", TensorView::contiguous(numbers_of_keys.data(), DType::float32, {3})}};
    gradients = {{"a", MutableTensorView::contiguous(grad_of_head.data(), DType::float32, {heads_q})},
                 {"t", MutableTensorView::contiguous(grad_of_keys.data(), DType::float32, {3})}};
    attention.mask_expression = MaskExpression("kv_idx < n[batch]", {}, {"n"});
    attention.mask_parameters = {{"n", TensorView::contiguous(lengths_of_mask.data(), DType::int32, {2})}};
    attention.output_offsets = TensorView::contiguous(begins_of_output.data(), DType::int32, {2});
    if (!has_gaps) return;
    gaps_q = {0, 2, 2, 5};
    have_gaps();
    have_map();
    attention.out_scale = OutScale::of_rows(TensorView::contiguous(scales_of_rows.data(), DType::float32, {tokens_q}));
    grad_out_scale = MutableTensorView::contiguous(grad_of_rows.data(), DType::float32, {tokens_q});
  }

  /// All but the query, which the others are compared with.
  std::vector<NamedDevice> devices(Direction direction) {
    std::vector<NamedDevice> all = {{"key", &attention.key.device}, {"value", &attention.value.device}};
    const auto add = [&](const char* who, std::optional<TensorView>& view) {
      if (view) all.push_back({who, &view->device});
    };
    add("cu_seqlens_q", attention.cu_seqlens_q);
    add("cu_seqlens_k", attention.cu_seqlens_k);
    add("seq_offsets_q", attention.seq_offsets_q);
    add("seq_offsets_k", attention.seq_offsets_k);
    add("kv_of", attention.kv_of);
    add("output_offsets", attention.output_offsets);
    const bool has_rows = attention.out_scale.kind == OutScale::Kind::per_row;
    all.push_back(
        {"out_scale", has_rows ? &attention.out_scale.per_row.device : &attention.out_scale.per_batch.device});
    for (Parameter& parameter : attention.parameters) {
      all.push_back({"parameter " + parameter.name, &parameter.value.device});
    }
    for (Parameter& parameter : attention.mask_parameters) {
      all.push_back({"mask parameter " + parameter.name, &parameter.value.device});
    }
    if (direction == Direction::forward) {
      all.push_back({"output", &output_view.device});
      return all;
    }
    all.push_back({"grad_output", &grad_output_view.device});
    all.push_back({"grad_query", &grad_query_view.device});
    all.push_back({"grad_key", &grad_key_view.device});
    all.push_back({"grad_value", &grad_value_view.device});
    for (ParameterGradient& gradient : gradients) {
      all.push_back({"gradient of parameter " + gradient.name, &gradient.value.device});
    }
    if (has_rows) all.push_back({"gradient of out_scale", &grad_out_scale.device});
    return all;
  }

  void check(Direction direction) {
    if (direction == Direction::forward) {
      api::check_forward(attention, output_view);
    } else {
      api::check_backward(
          attention, {grad_output_view, grad_query_view, grad_key_view, grad_value_view, gradients, grad_out_scale});
    }
  }
};

constexpr Device cpu{DeviceKind::cpu, 0}, first_gpu{DeviceKind::cuda, 0}, second_gpu{DeviceKind::cuda, 1};

TEST(Checks, RefuseEachTensorThatIsOnAnotherDeviceThanTheQuery) {
  std::set<std::string> names;
  for (const Device device : {cpu, first_gpu, second_gpu}) {
    for (const bool has_gaps : {false, true}) {
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        CallWithTensors call(has_gaps);
        call.attention.query.device = device;
        for (const NamedDevice& tensor : call.devices(direction)) *tensor.device = device;
        EXPECT_NO_THROW(call.check(direction));
        for (const NamedDevice& tensor : call.devices(direction)) {
          names.insert(tensor.who);
          for (const Device other : {cpu, first_gpu, second_gpu}) {
            if (other == device) continue;
            *tensor.device = other;
            expect_refused(
                [&] { call.check(direction); },
                {tensor.who,
                 {},
                 ErrorKind::type,
                 fmt::format("{}: expected device {}, as the query's, got {}; move all tensors to one device",
                             tensor.who, api::to_string(device), api::to_string(other))});
          }
          *tensor.device = device;
        }
      }
    }
  }
  EXPECT_EQ(names.size(), 20U);
}

/// Keys in pages of 16 rows, of two batch entries without keys.
struct CallWithPages {
  static constexpr int64_t heads = 2, head_dim = 8, page_rows = 16;
  int64_t pages;
  std::vector<float> query = std::vector<float>(2 * heads * head_dim), output = query;
  std::vector<float> key = std::vector<float>(static_cast<std::size_t>(2 * page_rows * heads * head_dim)), value = key;
  std::vector<int32_t> table = {0, 0}, used = {0, 0};
  Attention attention;

  explicit CallWithPages(int64_t count) : pages(count) {
    attention.query = TensorView::contiguous(query.data(), DType::float32, {2, 1, heads, head_dim});
    attention.key = TensorView::contiguous(key.data(), DType::float32, {pages, page_rows, heads, head_dim});
    attention.value = TensorView::contiguous(value.data(), DType::float32, {pages, page_rows, heads, head_dim});
    attention.block_table = TensorView::contiguous(table.data(), DType::int32, {2, 1});
    attention.seqused_k = TensorView::contiguous(used.data(), DType::int32, {2});
  }
  void check() {
    MutableTensorView result = MutableTensorView::contiguous(output.data(), DType::float32, {2, 1, heads, head_dim});
    result.device = attention.query.device;
    api::check_forward(attention, result);
  }
  void move_to(Device device) {
    for (TensorView* view :
         {&attention.query, &attention.key, &attention.value, &*attention.block_table, &*attention.seqused_k}) {
      view->device = device;
    }
  }
};

TEST(Checks, RefuseABlockTableOrLengthsOfPagesOnAnotherDevice) {
  for (const Device device : {cpu, first_gpu}) {
    const Device other = device == cpu ? first_gpu : cpu;
    const std::string rest = fmt::format(": expected device {}, as the query's, got {}; move all tensors to one device",
                                         api::to_string(device), api::to_string(other));
    CallWithPages call(2);
    call.move_to(device);
    EXPECT_NO_THROW(call.check());
    call.attention.block_table->device = other;
    expect_refused([&] { call.check(); }, {"block_table", {}, ErrorKind::type, "block_table" + rest});
    call.move_to(device);
    call.attention.seqused_k->device = other;
    expect_refused([&] { call.check(); }, {"seqused_k", {}, ErrorKind::type, "seqused_k" + rest});
  }
}

/// Even if no entry has keys: kernels read a page in place of one that does not exist.
TEST(Checks, RefuseABlockTableWithoutAPage) {
  for (const Device device : {cpu, first_gpu}) {
    CallWithPages without(0), with_one(1);
    without.move_to(device);
    with_one.move_to(device);
    expect_refused([&] { without.check(); },
                   {"no pages", {}, ErrorKind::value, "key: expected at least one page, got 0; pass the pages"});
    EXPECT_NO_THROW(with_one.check());
    without.attention.block_table->sizes[1] = 0;
    EXPECT_NO_THROW(without.check()) << "a table without pages names none";
  }
}

TEST(Checks, RefuseAnOutputThatDoesNotFit) {
  const std::vector<Mistake> mistakes = {
      {"shape", [](Call& c) { c.output_view.sizes[2] = 8; }, ErrorKind::value,
       "output: expected shape (5, 4, 16), got (5, 4, 8); allocate the query's shape with the value's head_dim last"},
      {"overlap", [](Call& c) { c.output_view.strides[0] = 32; }, ErrorKind::value,
       "output: expected strides that give each element an address of its own, got stride 32 in dimension 0 of shape "
       "(5, 4, 16); write into a tensor of its own, or a view that does not repeat or overlap rows"},
      {"broadcast", [](Call& c) { c.output_view.strides[1] = 0; }, ErrorKind::value,
       "output: expected strides that give each element an address of its own, got stride 0 in dimension 1 of shape "
       "(5, 4, 16); write into a tensor of its own, or a view that does not repeat or overlap rows"},
      {"alias", [](Call& c) { c.output_view.data = c.query.data(); }, ErrorKind::value,
       "output: expected memory of its own, got elements that query has too; write into another tensor"},
      {"alias_of_a_part", [](Call& c) { c.output_view.data = c.query.data() + 7; }, ErrorKind::value,
       "output: expected memory of its own, got elements that query has too; write into another tensor"},
      {"alias_of_the_end", [](Call& c) { c.attention.value.data = c.output.data() + c.output.size() - 1; },
       ErrorKind::value,
       "output: expected memory of its own, got elements that value has too; write into another tensor"},
      {"alias_of_offsets",
       [](Call& c) {
         c.output.front() = 0;  // all offsets are 0
         c.output[1] = c.output[2] = 0;
         c.attention.cu_seqlens_q->data = c.output.data();
       },
       ErrorKind::value,
       "output: expected memory of its own, got elements that cu_seqlens_q has too; write into another tensor"},
      {"alias_of_out_scale",
       [](Call& c) {
         std::fill_n(c.output.begin(), 4, 0.0F);  // two finite numbers of 64 bits
         c.attention.out_scale.per_batch.data = c.output.data();
       },
       ErrorKind::value,
       "output: expected memory of its own, got elements that out_scale has too; write into another tensor"},
      {"dtype", [](Call& c) { c.output_view.dtype = DType::float64; }, ErrorKind::type,
       "output: expected dtype float32, as the query's, got float64; convert all operands to one dtype"},
  };
  for (const Mistake& mistake : mistakes) {
    Call call;
    mistake.spoil(call);
    expect_refused([&] { call.run_forward(); }, mistake);
  }
}

TEST(Checks, RefuseGradientsThatDoNotFit) {
  const std::vector<Mistake> mistakes = {
      {"shape_of_output", [](Call& c) { c.grad_output_view.sizes[0] = 4; }, ErrorKind::value,
       "grad_output: expected shape (5, 4, 16), got (4, 4, 16); allocate the query's shape with the value's head_dim "
       "last"},
      {"shape_of_query", [](Call& c) { c.grad_query_view.sizes[1] = 2; }, ErrorKind::value,
       "grad_query: expected shape (5, 4, 8), as its input's, got (5, 2, 8); allocate the input's shape"},
      {"one_memory_for_two", [](Call& c) { c.grad_value_view.data = c.grad_key.data(); }, ErrorKind::value,
       "grad_value: expected memory of its own, got elements that grad_key has too; write into another tensor"},
      {"one_memory_in_part", [](Call& c) { c.grad_query_view.data = c.grad_value.data() + 3; }, ErrorKind::value,
       "grad_value: expected memory of its own, got elements that grad_query has too; write into another tensor"},
      {"alias_of_grad_output", [](Call& c) { c.grad_output_view.data = c.grad_key.data(); }, ErrorKind::value,
       "grad_key: expected memory of its own, got elements that grad_output has too; write into another tensor"},
  };
  for (const Mistake& mistake : mistakes) {
    Call call;
    mistake.spoil(call);
    expect_refused([&] { call.run_backward(); }, mistake);
  }
}

TEST(Checks, GradientsMayBeViewsOfOneFusedTensor) {
  constexpr int64_t tokens = 5, heads = 2, head_dim = 8;
  // Inputs and gradients, all six of them row by row in one memory.
  std::vector<float> fused(tokens * 6 * heads * head_dim, 1.0F);
  const auto part = [&](int64_t index) {
    auto view = MutableTensorView::contiguous(fused.data() + index * heads * head_dim, DType::float32,
                                              {tokens, heads, head_dim});
    view.strides[0] = 6 * heads * head_dim;
    return view;
  };
  const auto input = [&](int64_t index) {
    const MutableTensorView view = part(index);
    return TensorView{view.data, view.dtype, view.device, view.rank, view.sizes, view.strides};
  };
  const Attention attention{.query = input(0), .key = input(1), .value = input(2)};
  const std::vector<float> ones(tokens * heads * head_dim, 1.0F);
  const TensorView grad_output = TensorView::contiguous(ones.data(), DType::float32, {tokens, heads, head_dim});
  EXPECT_NO_THROW(backward(attention, grad_output, part(3), part(4), part(5)));
  EXPECT_THROW(backward(attention, grad_output, part(3), part(4), part(4)), Error);
  EXPECT_THROW(backward(attention, grad_output, part(2), part(4), part(5)), Error);
  EXPECT_NO_THROW(forward(attention, part(3)));
  MutableTensorView shifted = part(3);
  shifted.data = static_cast<float*>(shifted.data) - 1;
  EXPECT_THROW(forward(attention, shifted), Error) << "the last element of a row of the value";
}

TEST(Checks, RefuseWhatTheGpuKernelsAreNotWrittenFor) {
  const std::vector<Mistake> mistakes = {
      {"float64",
       [](Call& c) {
         for (TensorView* view : {&c.attention.query, &c.attention.key, &c.attention.value}) {
           view->dtype = DType::float64;
         }
       },
       ErrorKind::type,
       "query: expected dtype bfloat16, float16 or float32 on a GPU, got float64; convert it, or move the tensors to "
       "the "
       "CPU"},
      {"head_dim", [](Call& c) { c.attention.value.sizes[2] = 12; }, ErrorKind::value,
       "value: expected a head_dim that is a multiple of 8 up to 256 on a GPU, got 12; pad it with zeros, or move the "
       "tensors to the CPU"},
      {"length_of_shared_keys",
       [](Call& c) {
         c.drop_offsets();
         c.attention.key.sizes[0] = c.attention.value.sizes[0] = most_gpu_rows + 1;
       },
       ErrorKind::value,
       "key: expected at most 2147418112 rows in a sequence on a GPU, got 2147418113; split the sequence, or move the "
       "tensors to the CPU"},
      {"dense_length",
       [](Call& c) {
         c.drop_offsets();
         c.attention.query.rank = 4;
         c.attention.query.sizes = {2, int64_t{1} << 31, Call::heads_q, Call::head_dim};
         c.attention.query.strides = {0, 0, Call::head_dim, 1};
       },
       ErrorKind::value,
       "query: expected at most 2147418112 rows in a sequence on a GPU, got 2147483648; split the sequence, or move "
       "the tensors to the CPU"},
  };
  for (const Mistake& mistake : mistakes) {
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      Call on_gpu;
      on_gpu.move_operands_to_gpu();
      mistake.spoil(on_gpu);
      expect_refused([&] { api::check_plan(on_gpu.attention, direction); }, mistake);
      // A plan for a named architecture, with tensors on the CPU.
      Call for_gpu;
      mistake.spoil(for_gpu);
      expect_refused([&] { api::check_plan(for_gpu.attention, direction, true); }, mistake);
    }
  }
}

TEST(Checks, ADenseLengthOnAGpuIsAtMostTheLargestThatTheKernelsCount) {
  static_assert(most_gpu_rows < int64_t{1} << 31, "row numbers in kernels have 32 bits");
  const auto call_of = [](int64_t rows_q, int64_t rows_k) {
    Call call;
    call.drop_offsets();
    call.attention.out_scale = OutScale::of(1.0);
    call.move_operands_to_gpu();
    for (TensorView* view : {&call.attention.query, &call.attention.key, &call.attention.value}) {
      const bool is_query = view == &call.attention.query;
      view->rank = 4;
      view->sizes = {1, is_query ? rows_q : rows_k, 1, 8};
      view->strides = {0, 0, 0, 1};
    }
    return api::check_plan(call.attention, Direction::backward);
  };
  EXPECT_NO_THROW(call_of(most_gpu_rows, most_gpu_rows));
  EXPECT_THROW(call_of(most_gpu_rows + 1, 1), Error);
  EXPECT_THROW(call_of(1, most_gpu_rows + 1), Error);
}

TEST(Checks, AWorkspaceIsAlignedOnEveryDevice) {
  alignas(256) static std::byte memory[512];
  for (const bool is_on_gpu : {false, true}) {
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      const auto check = [&](int64_t offset) {
        Call call;
        call.attention.out_scale = OutScale::of(1.0);
        if (is_on_gpu) {
          call.drop_offsets();
          call.move_operands_to_gpu();
        }
        call.attention.workspace = {memory + offset, 256};
        api::check_plan(call.attention, direction);
      };
      EXPECT_NO_THROW(check(0));
      EXPECT_NO_THROW(check(256));
      for (const int64_t offset : {1, 16, 64, 128, 255}) EXPECT_THROW(check(offset), Error) << offset << is_on_gpu;
    }
  }
}

TEST(Checks, ADenseLengthBeyond32BitsIsAllowedOnTheCpu) {
  const int64_t length = (int64_t{1} << 31) + 5;
  const auto view = [&](int64_t rows) {
    TensorView dense = TensorView::contiguous(nullptr, DType::float32, {1, rows, 1, 8});
    dense.strides[1] = 0;
    return dense;
  };
  const Attention attention{.query = view(length), .key = view(3), .value = view(3)};
  EXPECT_EQ(api::check_plan(attention, Direction::forward).params.queries.length, length);
}

TEST(Checks, DescribeAJaggedProblemByItsRowsAndHeads) {
  Call call;
  const CheckedCall checked = api::check_forward(call.attention, call.output_view);
  EXPECT_EQ(checked.problem.batch, 2);
  EXPECT_EQ(checked.problem.query_form, Form::jagged);
  EXPECT_EQ(checked.problem.rows_k, 6);
  EXPECT_EQ(checked.params.queries.size(1), 3);
  EXPECT_EQ(checked.params.keys.size(0), 6);
  EXPECT_EQ(checked.params.key_head(3), 1);
  EXPECT_EQ(checked.params.query.offset(checked.params.queries, 1, 2, 3), (4 * 4 + 3) * 8);
  EXPECT_DOUBLE_EQ(checked.params.scale, 1.0 / std::sqrt(8.0));
  EXPECT_DOUBLE_EQ(checked.params.out_scale.of(1, 3, 0), 2.0);
}

TEST(Checks, BackwardReadsTheScaleOfARowAsATensorOfTheFunctionOnAGpuAndForItsGradient) {
  const std::vector<float> rows(5, .5F);
  const auto checked = [&](Direction direction, bool for_gpu, const Activation& activation, bool is_wanted = false) {
    Call call;
    call.drop_offsets();
    call.attention.activation = activation;
    const std::vector<std::string> names = activation.parameters();
    for (const std::string& name : names) {
      call.attention.parameters.push_back({name, TensorView::contiguous(rows.data(), DType::float32, {5})});
    }
    call.attention.out_scale = OutScale::of_rows(TensorView::contiguous(rows.data(), DType::float32, {5}));
    return api::check_plan(call.attention, direction, for_gpu, {true, true, true, 0, is_wanted});
  };
  const Activation plain("silu"), list("silu; gelu; i * s; relu with i = 2"), reading("silu(s + t[q_idx])", {}, {"t"});
  EXPECT_EQ(checked(Direction::forward, true, plain).function, nullptr);
  EXPECT_EQ(checked(Direction::backward, false, plain).function, nullptr);
  EXPECT_EQ(checked(Direction::forward, true, plain).problem.out_scale, OutScale::Kind::per_row);
  const std::array activations{plain, list, reading};
  for (std::size_t choice = 0; choice < 9; ++choice) {
    const Activation& activation = activations[choice / 3];
    const bool for_gpu = choice % 3 > 0, is_wanted = choice % 3 < 2;
    const CheckedCall call = checked(Direction::backward, for_gpu, activation, is_wanted);
    ASSERT_NE(call.function, nullptr);
    const std::size_t tensor = activation.parameters().size();
    EXPECT_EQ(call.problem.wanted.parameters, is_wanted ? 1U << tensor : 0U);
    EXPECT_EQ(call.params.grad_parameters[tensor].sizes[0], is_wanted ? 5 : 0);
    EXPECT_EQ(call.function->parameters().size(), tensor + 1);
    EXPECT_EQ(call.function->functions(), activation.function().functions());
    EXPECT_EQ(call.params.parameters[tensor].data, rows.data());
    EXPECT_EQ(call.function->inputs().back().row_axes, 1U);
    EXPECT_EQ(call.problem.tensor_types >> 4 * tensor & 7U, static_cast<unsigned>(NumberType::float32));
    EXPECT_EQ(call.problem.out_scale, OutScale::Kind::number);
    EXPECT_EQ(call.function, checked(Direction::backward, true, activation).function) << "made once";
  }
  const std::string eight =
      "s + t0[q_idx] + t1[q_idx] + t2[q_idx] + t3[q_idx] + t4[q_idx] + t5[q_idx] + t6[q_idx] + t7[q_idx]";
  const Activation full(eight, {}, {"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7"});
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const bool for_gpu : {false, true}) EXPECT_THROW(checked(direction, for_gpu, full), Error);
  }
}

TEST(Checks, TheGradientOfTheScaleOfRowsHasTheShapeOfTheScale) {
  std::vector<float> rows(10, .5F), gradient(10);
  const auto refusal = [&](const MutableTensorView& view, bool has_rows = true) -> std::string {
    Call call;
    if (has_rows)
      call.attention.out_scale = OutScale::of_rows(TensorView::contiguous(rows.data(), DType::float32, {5}));
    try {
      backward(call.attention, call.grad_output_view, call.grad_query_view, {}, {}, {}, view);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto view_of = [&](std::vector<float>& numbers, DType dtype, int64_t size) {
    return MutableTensorView::contiguous(numbers.data(), dtype, {size});
  };
  EXPECT_EQ(refusal(view_of(gradient, DType::float32, 5)), "");
  EXPECT_EQ(refusal(view_of(gradient, DType::float32, 4)),
            "gradient of out_scale: expected shape (5,), as the parameter's, got (4,); allocate the parameter's shape");
  EXPECT_EQ(refusal(view_of(gradient, DType::bfloat16, 5)),
            "gradient of out_scale: expected dtype float32 or float64, got bfloat16; allocate another tensor");
  EXPECT_EQ(
      refusal(view_of(rows, DType::float32, 5)),
      "gradient of out_scale: expected memory of its own, got elements that out_scale has too; write into another "
      "tensor");
  EXPECT_EQ(refusal(view_of(gradient, DType::float32, 5), false),
            "gradient of out_scale: expected an out_scale with one number for each row of the query, got another one; "
            "leave it out");
}

TEST(Checks, ASharedQueryGivesEachBatchEntryItsRowsOfTheOutput) {
  Call call;
  call.attention.cu_seqlens_q.reset();
  std::vector<float> output(2 * call.output.size());
  for (const MutableTensorView& view : {MutableTensorView::contiguous(output.data(), DType::float32, {10, 4, 16}),
                                        MutableTensorView::contiguous(output.data(), DType::float32, {2, 5, 4, 16})}) {
    const CheckedCall checked = api::check_forward(call.attention, view);
    EXPECT_EQ(checked.problem.query_form, Form::shared);
    EXPECT_EQ(checked.problem.batch, 2);
    EXPECT_EQ(checked.params.query.offset(checked.params.queries, 1, 0, 0), 0);
    EXPECT_EQ(checked.params.output.offset(checked.params.queries, 1, 0, 0), 5 * 4 * 16);
  }
}

TEST(Checks, SizesOfOneMayHaveAnyStride) {
  Call call;
  call.attention.cu_seqlens_q.reset();
  call.attention.cu_seqlens_k.reset();
  call.attention.out_scale = OutScale::of(1.0);
  for (TensorView* view : {&call.attention.query, &call.attention.key, &call.attention.value}) {
    view->sizes = {1, 1, 1, 0};
    view->strides = {7, 7, 7, 0};
  }
  call.output_view.sizes = {1, 1, 1, 0};
  call.output_view.strides = {0, 0, 0, 0};
  EXPECT_NO_THROW(api::check_forward(call.attention, call.output_view));
}

TEST(Checks, AnOutputWithoutElementsOverlapsNothing) {
  Call call;
  call.attention.cu_seqlens_q.reset();
  call.attention.query = TensorView::contiguous(nullptr, DType::float32, {2, 0, Call::heads_q, Call::head_dim});
  call.output_view = MutableTensorView::contiguous(nullptr, DType::float32, {2, 0, Call::heads_q, Call::head_dim_v});
  EXPECT_NO_THROW(call.run_forward());
}

TEST(Checks, APlanNeedsNoData) {
  Call call;
  for (TensorView* view : {&call.attention.query, &call.attention.key, &call.attention.value}) view->data = nullptr;
  EXPECT_NO_THROW(api::check_plan(call.attention, Direction::backward));
}

TEST(Checks, APlanAssumesThatGradientsOfTensorsHaveTheDtypesOfTheTensors) {
  for (const DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
    Call call;
    call.attention.activation = Activation("s + a[head]", {}, {"a"});
    TensorView tensor;
    tensor.dtype = dtype;
    tensor.rank = 1;
    tensor.sizes = {Call::heads_q};
    tensor.strides = {1};
    call.attention.parameters = {{"a", tensor}};
    const CheckedCall checked = api::check_plan(call.attention, Direction::backward, false, {false, false, false, 1});
    EXPECT_EQ(checked.params.grad_parameters[0].type, checked.params.parameters[0].type) << name(dtype);
  }
}

TEST(Checks, AtLeastOneGradientIsWanted) {
  Call call;
  const MutableTensorView none;
  EXPECT_THROW(backward(call.attention, call.grad_output_view, none, none, none), Error);
  EXPECT_THROW(flops(call.attention, Direction::backward, {false, false, false}), Error);
}

TEST(Checks, ProductsThatNoWantedGradientNeedsAreNotCounted) {
  Call call;
  const double all = flops(call.attention, Direction::backward);
  const double d = Call::head_dim, d_v = Call::head_dim_v;
  const double unit = all / (3 * d + 2 * d_v);
  EXPECT_DOUBLE_EQ(flops(call.attention, Direction::backward, {true, false, false}), unit * (2 * d + d_v));
  EXPECT_DOUBLE_EQ(flops(call.attention, Direction::backward, {false, true, false}), unit * (2 * d + d_v));
  EXPECT_DOUBLE_EQ(flops(call.attention, Direction::backward, {false, false, true}), unit * (d + d_v));
  EXPECT_DOUBLE_EQ(flops(call.attention, Direction::backward, {false, true, true}), unit * (2 * d + 2 * d_v));
}

TEST(Checks, sequences_with_gaps_may_be_in_any_order_and_keys_may_overlap) {
  Call call;
  call.have_gaps();
  call.run_forward();
  call.run_backward();
}

TEST(Checks, sequences_of_queries_may_touch) {
  Call call;
  call.gaps_q = {3, 5, 0, 3};
  call.have_gaps();
  call.run_forward();
}

TEST(Checks, the_batch_of_a_map_is_free) {
  Call call;
  call.have_map();
  call.run_forward();
  call.run_backward();
  const CheckedCall checked = api::check_plan(call.attention, Direction::backward, true, {});
  EXPECT_TRUE(checked.problem.has_batch_map);
  EXPECT_EQ(checked.problem.batch, 2);
  EXPECT_EQ(checked.problem.mapped_entries, 2);
  call.map = {1, 0, 1, 1, 0};
  call.have_map();
  call.attention.cu_seqlens_q.reset();
  call.attention.out_scale = OutScale::of(1.0);
  const CheckedCall of_shared_queries = api::check_plan(call.attention, Direction::backward, true, {});
  EXPECT_EQ(of_shared_queries.problem.batch, 5);
  EXPECT_EQ(of_shared_queries.problem.mapped_entries, 2);
  EXPECT_EQ(of_shared_queries.params.keys.sequences, 2);
}

/// Keys in two pages of 32 rows: 40 keys of the first entry, 5 of the second.
struct PagedCall : Call {
  std::vector<float> pages = std::vector<float>(3 * 32 * heads_k * head_dim_v, 1.0F);
  std::vector<int32_t> table = {2, 0, 1, 7}, used = {40, 5};

  PagedCall() {
    attention.cu_seqlens_k.reset();
    attention.key = TensorView::contiguous(pages.data(), DType::float32, {3, 32, heads_k, head_dim});
    attention.value = TensorView::contiguous(pages.data(), DType::float32, {3, 32, heads_k, head_dim_v});
    attention.block_table = TensorView::contiguous(table.data(), DType::int32, {2, 2});
    attention.seqused_k = TensorView::contiguous(used.data(), DType::int32, {2});
  }
};

TEST(Checks, the_pages_of_the_used_keys_exist) {
  PagedCall().run_forward();  // page 7 has no used key
  const auto message_of = [](const std::function<void(PagedCall&)>& spoil) {
    PagedCall call;
    spoil(call);
    try {
      call.run_forward();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message_of([](PagedCall& c) { c.used[1] = 32; }), "accepted");
  EXPECT_EQ(message_of([](PagedCall& c) { c.used[1] = 33; }),
            "block_table: expected numbers from 0 to 2, the pages, got 7 at index (1, 1); correct the number");
  EXPECT_EQ(message_of([](PagedCall& c) { c.table[0] = -1; }),
            "block_table: expected numbers from 0 to 2, the pages, got -1 at index (0, 0); correct the number");
  EXPECT_EQ(message_of([](PagedCall& c) { c.table[0] = 3; }),
            "block_table: expected numbers from 0 to 2, the pages, got 3 at index (0, 0); correct the number");
  EXPECT_EQ(message_of([](PagedCall& c) { c.used[0] = 65; }),
            "seqused_k: expected numbers from 0 to 64, the rows of the pages, got 65 at index 0; correct the number");
  EXPECT_EQ(message_of([](PagedCall& c) { c.attention.key.sizes[1] = c.attention.value.sizes[1] = 24; }),
            "key: expected shape (pages, rows of a page, heads, head_dim) with a multiple of 16 rows, got (3, 24, 2, "
            "8); use larger pages, or gather them");
}

TEST(Checks, rows_of_the_output_belong_to_one_entry_and_exist) {
  const auto is_accepted = [](const std::vector<int64_t>& begins, int64_t rows) {
    Call call;
    call.attention.output_offsets = TensorView::contiguous(begins.data(), DType::int64, {2});
    call.output.resize(static_cast<std::size_t>(rows * Call::heads_q * Call::head_dim_v));
    call.output_view =
        MutableTensorView::contiguous(call.output.data(), DType::float32, {rows, Call::heads_q, Call::head_dim_v});
    try {
      call.run_forward();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("output_offsets: expected"), std::string::npos) << error.what();
      return false;
    }
    return true;
  };
  // The entries have two and three queries.
  EXPECT_TRUE(is_accepted({0, 2}, 5));
  EXPECT_TRUE(is_accepted({7, 4}, 9));
  EXPECT_FALSE(is_accepted({7, 5}, 9)) << "row 7 of both";
  EXPECT_FALSE(is_accepted({8, 4}, 9)) << "row 9";
  EXPECT_FALSE(is_accepted({0, 3}, 5)) << "row 5";
  EXPECT_FALSE(is_accepted({0, -1}, 9));
}

TEST(Checks, the_numbers_of_dense_rows_may_have_any_one_distance) {
  const auto is_accepted = [](int64_t stride_of_entries, int64_t stride_of_rows) {
    Call call;
    call.drop_offsets();
    call.attention.query = TensorView::contiguous(call.query.data(), DType::float32, {2, 2, 4, 8});
    call.attention.key = TensorView::contiguous(call.key.data(), DType::float32, {2, 3, 2, 8});
    call.attention.value = TensorView::contiguous(call.value.data(), DType::float32, {2, 3, 2, 16});
    const std::vector<float> numbers(40, 1.0F);
    TensorView rows = TensorView::contiguous(numbers.data(), DType::float32, {2, 2});
    rows.strides = {stride_of_entries, stride_of_rows};
    call.attention.out_scale = OutScale::of_rows(rows);
    try {
      api::check_plan(call.attention, Direction::forward);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("out_scale: expected rows of one distance"), std::string::npos);
      return false;
    }
    return true;
  };
  EXPECT_TRUE(is_accepted(2, 1));
  EXPECT_TRUE(is_accepted(10, 5));
  EXPECT_FALSE(is_accepted(2, 5));
  EXPECT_FALSE(is_accepted(5, 1));
}

TEST(Checks, the_widest_heads_of_a_gpu_have_256_columns) {
  const auto plan = [](int64_t head_dim, int64_t head_dim_v) {
    Call call;
    call.attention.query.sizes[2] = call.attention.key.sizes[2] = head_dim;
    call.attention.value.sizes[2] = head_dim_v;
    api::check_plan(call.attention, Direction::forward, true);
  };
  EXPECT_NO_THROW(plan(256, 256));
  EXPECT_NO_THROW(plan(8, 8));
  EXPECT_THROW(plan(264, 256), Error);
  EXPECT_THROW(plan(256, 264), Error);
  EXPECT_THROW(plan(12, 16), Error);
}

/// The checked call of a plan with tensors of the function and of the mask.
struct TensorCall : Call {
  CheckedCall checked(const std::string& function, const std::vector<Parameter>& tensors, const std::string& mask = "",
                      const std::vector<Parameter>& of_mask = {}) {
    const auto names = [](const std::vector<Parameter>& all) {
      std::vector<std::string> result;
      for (const Parameter& one : all) result.push_back(one.name);
      return result;
    };
    attention.activation = Activation(function, {}, names(tensors));
    attention.parameters = tensors;
    if (!mask.empty()) attention.mask_expression = MaskExpression(mask, {}, names(of_mask));
    attention.mask_parameters = of_mask;
    return api::check_plan(attention, Direction::forward, true);
  }
};

TEST(Checks, the_types_of_tensors_are_apart_and_say_whether_offsets_are_wide) {
  const auto view = [](DType dtype, std::initializer_list<int64_t> sizes) {
    return TensorView::contiguous(nullptr, dtype, sizes);
  };
  TensorCall call;
  const unsigned types = call.checked("s + t[q_idx, kv_idx] + u[kv_idx] + n", {{"n", view(DType::float32, {4})},
                                                                               {"t", view(DType::bfloat16, {2, 3})},
                                                                               {"u", view(DType::int64, {3})}})
                             .problem.tensor_types;
  EXPECT_EQ(types & 15U, static_cast<unsigned>(NumberType::float32));
  EXPECT_EQ(types >> 4 & 15U, static_cast<unsigned>(NumberType::bfloat16));
  EXPECT_EQ(types >> 8 & 15U, static_cast<unsigned>(NumberType::int64));
  for (const auto& [dtype, bytes] : {std::pair{DType::float32, 4}, {DType::bfloat16, 2}, {DType::int64, 8}}) {
    constexpr int64_t most = std::numeric_limits<int32_t>::max();
    const auto is_wide = [&](int64_t elements) {
      return (call.checked("s + t[kv_idx]", {{"t", view(dtype, {elements})}}).problem.tensor_types & 8U) != 0;
    };
    EXPECT_FALSE(is_wide(most / bytes + 1));
    EXPECT_TRUE(is_wide(most / bytes + 2));
  }
}

TEST(Checks, an_axis_of_rows_has_an_element_for_each_row_of_its_side) {
  TensorCall call;
  const auto is_accepted = [&](const std::string& function, int64_t size) {
    try {
      call.checked(function, {{"t", TensorView::contiguous(nullptr, DType::float32, {2, size})}});
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("on axis 1, one for each row of "), std::string::npos);
      return false;
    }
    return true;
  };
  for (const auto& [function, rows] :
       {std::pair("s + t[head, q_row]", Call::tokens_q), {"s + t[head, kv_row]", Call::tokens_k}}) {
    EXPECT_TRUE(is_accepted(function, rows) && is_accepted(function, rows + 1) && is_accepted(function, 1)) << function;
    EXPECT_FALSE(is_accepted(function, rows - 1)) << function;
  }
  EXPECT_TRUE(is_accepted("s + t[head, q_idx]", 2)) << "of positions";
}

TEST(Checks, a_tensor_without_an_index_has_one_number_or_one_for_each_head) {
  const auto is_accepted = [](std::initializer_list<int64_t> sizes) {
    const std::vector<float> numbers(8, 1.0F);
    try {
      TensorCall().checked("n * s", {{"n", TensorView::contiguous(numbers.data(), DType::float32, sizes)}});
    } catch (const Error&) {
      return false;
    }
    return true;
  };
  EXPECT_TRUE(is_accepted({}));
  EXPECT_TRUE(is_accepted({1}));
  EXPECT_TRUE(is_accepted({Call::heads_q}));
  EXPECT_FALSE(is_accepted({Call::heads_k}));
  EXPECT_FALSE(is_accepted({1, Call::heads_q}));
}

TEST(Checks, a_mask_differs_between_heads_if_it_reads_the_head_or_a_number_of_each) {
  const auto depends = [](const std::string& mask, int64_t heads, std::initializer_list<int64_t> sizes) {
    TensorCall call;
    call.attention.query.sizes[1] = heads;
    const TensorView view = TensorView::contiguous(nullptr, DType::float32, sizes);
    std::vector<Parameter> of_mask;
    if (mask.find('n') != std::string::npos) of_mask.push_back({"n", view});
    return call.checked("gelu", {}, mask, of_mask).problem.mask_depends_on_head;
  };
  EXPECT_TRUE(depends("kv_idx <= head", 4, {}));
  EXPECT_TRUE(depends("kv_idx <= n", 4, {4}));
  EXPECT_TRUE(depends("kv_idx <= n", 2, {2}));
  EXPECT_FALSE(depends("kv_idx <= n", 4, {1}));
  EXPECT_FALSE(depends("kv_idx <= n", 4, {}));
  EXPECT_FALSE(depends("kv_idx <= n[q_idx]", 2, {5}));
  EXPECT_FALSE(depends("kv_idx <= q_idx", 4, {}));
}

TEST(Checks, a_prepared_mask_has_the_memory_that_its_text_says) {
  TensorCall call;
  call.checked("gelu", {}, "kv_idx <= q_idx + 1");
  call.move_operands_to_gpu();
  call.attention.cu_seqlens_q->device = call.attention.cu_seqlens_k->device = {DeviceKind::cuda, 0};
  call.attention.out_scale = OutScale::of(1.0);
  plan::PreparedTiles tiles;
  tiles.call = plan::ListedCall::of(api::check_plan(call.attention, Direction::forward).problem,
                                    call.attention.mask_expression->function().identity());
  tiles.bytes = 4096;
  std::string message;
  const auto is_accepted = [&](void* data, int64_t bytes, const std::string& text) {
    call.attention.prepared_mask = PreparedMask{data, bytes, text};
    try {
      api::check_plan(call.attention, Direction::forward, false, {}, true);
    } catch (const Error& error) {
      message = error.what();
      EXPECT_NE(message.find("prepared_mask: expected"), std::string::npos) << message;
      return false;
    }
    return true;
  };
  EXPECT_TRUE(is_accepted(&call, 4096, tiles.text()));
  for (const auto& [device, name] : {std::pair{Device{DeviceKind::cuda, 1}, "cuda:1"}, {Device{}, "cpu"}}) {
    plan::PreparedTiles other = tiles;
    other.call.device = device;
    EXPECT_FALSE(is_accepted(&call, 4096, other.text())) << "the lists are in the memory of " << name;
    EXPECT_EQ(message, std::string("prepared_mask: expected a mask that is prepared on cuda:0, got one on ") + name +
                           "; prepare the mask with the arguments of this call");
  }
  EXPECT_FALSE(is_accepted(&call, 4095, tiles.text()));
  EXPECT_FALSE(is_accepted(nullptr, 4096, tiles.text()));
  for (int64_t plan::ListedCall::*const size :
       {&plan::ListedCall::batch, &plan::ListedCall::rows_q, &plan::ListedCall::rows_k, &plan::ListedCall::heads_q,
        &plan::ListedCall::heads_k}) {
    plan::PreparedTiles other = tiles;
    ++(other.call.*size);
    EXPECT_FALSE(is_accepted(&call, 4096, other.text()));
  }
}

TEST(PreparedTiles, a_text_gives_the_tiles_back_and_another_text_is_refused) {
  plan::PreparedTiles tiles;
  tiles.call = {2, 3, 5, 7, 11, Form::dense, Form::shared, {DeviceKind::cuda, 3}, 13};
  tiles.lists = {{{64, 128, 2, 4, 17}, true, 19, 23, 29}, {{128, 64, 1, 1, 31}, false, 37, 41, 0}};
  tiles.bytes = 43;
  const std::string text = tiles.text();
  const plan::PreparedTiles again = plan::PreparedTiles::of_text(text);
  EXPECT_EQ(again.text(), text);
  EXPECT_EQ(again.bytes, 43);
  EXPECT_EQ(again.call.heads_k, 11);
  EXPECT_EQ(again.call.key_form, Form::shared);
  ASSERT_EQ(again.lists.size(), 2U);
  EXPECT_EQ(again.lists[0].query_tiles, 29);
  EXPECT_EQ(again.lists[1].tile_keys, 64);
  const std::string of_another_version = "1" + text.substr(1), with_a_letter = text.substr(0, 3) + "x" + text.substr(4);
  for (const std::string& wrong :
       {std::string(), text + " 1", text.substr(0, text.rfind(' ')), of_another_version, with_a_letter, text + "x"}) {
    EXPECT_THROW(plan::PreparedTiles::of_text(wrong), Error) << wrong;
  }
}

/// A norm with every tensor. The checks read no memory.
struct CallOfNorm {
  static constexpr int64_t rows = 2, columns = 8;
  std::vector<float> memory = std::vector<float>(1000);
  int64_t taken = 0;
  Norm norm;
  MutableTensorView y, statistics;
  TensorView grad_y;
  NormGradients gradients;

  template <class View>
  View view(std::initializer_list<int64_t> sizes) {
    View result = View::contiguous(memory.data() + taken, DType::float32, sizes);
    taken += rows * columns;
    result.device = first_gpu;
    return result;
  }

  CallOfNorm() {
    norm.x = view<TensorView>({rows, columns});
    norm.weight = view<TensorView>({columns});
    norm.bias = view<TensorView>({columns});
    norm.gate = view<TensorView>({rows, columns});
    norm.residual = view<TensorView>({rows, columns});
    y = view<MutableTensorView>({rows, columns});
    statistics = view<MutableTensorView>({rows, 2});
    grad_y = view<TensorView>({rows, columns});
    gradients = {.x = view<MutableTensorView>({rows, columns}),
                 .weight = view<MutableTensorView>({columns}),
                 .bias = view<MutableTensorView>({columns}),
                 .gate = view<MutableTensorView>({rows, columns})};
  }

  std::vector<NamedDevice> devices(Direction direction) {
    std::vector<NamedDevice> all = {{"weight", &norm.weight->device},
                                    {"bias", &norm.bias->device},
                                    {"gate", &norm.gate->device},
                                    {"residual", &norm.residual->device},
                                    {"statistics", &statistics.device}};
    if (direction == Direction::forward) {
      all.push_back({"y", &y.device});
      return all;
    }
    all.push_back({"grad_y", &grad_y.device});
    all.push_back({"grad_x", &gradients.x.device});
    all.push_back({"grad_weight", &gradients.weight.device});
    all.push_back({"grad_bias", &gradients.bias.device});
    all.push_back({"grad_gate", &gradients.gate.device});
    return all;
  }

  void check(Direction direction) const {
    if (direction == Direction::forward) {
      api::check_norm_forward(norm, y, statistics);
    } else {
      const TensorView read{statistics.data, statistics.dtype, statistics.device,
                            statistics.rank, statistics.sizes, statistics.strides};
      api::check_norm_backward(norm, grad_y, read, gradients);
    }
  }
};

TEST(ChecksOfNorms, RefuseEachTensorThatIsOnAnotherDeviceThanX) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    CallOfNorm call;
    EXPECT_NO_THROW(call.check(direction));
    for (const NamedDevice& tensor : call.devices(direction)) {
      for (const Device other : {cpu, second_gpu}) {
        *tensor.device = other;
        expect_refused(
            [&] { call.check(direction); },
            {tensor.who,
             {},
             ErrorKind::type,
             fmt::format("{}: expected device cuda:0, the device of x, got {}; move all tensors to one device",
                         tensor.who, api::to_string(other))});
      }
      *tensor.device = first_gpu;
    }
    call.norm.x.device = cpu;
    expect_refused(
        [&] { call.check(direction); },
        {"x", {}, ErrorKind::type, "x: expected a tensor on a GPU, got cpu; use the operations of PyTorch on a CPU"});
  }
}

}  // namespace
}  // namespace gdpa
