// The generated struct Condition on a GPU: the words of valid scores, which solve comparisons for bounds of the
// columns, agree at every score with the definition of the condition in fp64. All conditions are in one kernel.
// GDPA_RANDOM_CONDITIONS sets the number of random conditions.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "codegen/condition.h"
#include "definition/params.h"
#include "device.h"
#include "expression/function.h"
#include "fmt/format.h"
#include "gdpa/mask_expression.h"
#include "gpu/driver.h"
#include "gpu/target.h"
#include "jit/images.h"

namespace gdpa::test {
namespace {

constexpr int64_t entry = 1, head = 2, length_q = 48, length_k = 152;

/// The first columns of the fragments. The keys of a fragment have 16 groups, the queries 8.
constexpr std::array<int, 5> first_columns = {0, 2, 4, 6, 24};
constexpr int origins = static_cast<int>(first_columns.size());

/// A tensor that conditions may read.
struct Tensor {
  std::string name;
  NumberType type;
  std::vector<int64_t> sizes;
  std::vector<double> numbers;

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> result;
    const auto add = [&](auto number) {
      const auto* const first = reinterpret_cast<const std::byte*>(&number);
      result.insert(result.end(), first, first + sizeof(number));
    };
    for (const double number : numbers) {
      if (type == NumberType::int32) add(static_cast<int32_t>(number));
      if (type == NumberType::int64) add(static_cast<int64_t>(number));
      if (type == NumberType::float32) add(static_cast<float>(number));
    }
    return result;
  }

  double at(const std::vector<int64_t>& indices) const {
    int64_t element = 0;
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
      element = element * sizes[axis] + std::clamp<int64_t>(indices[axis], 0, sizes[axis] - 1);
    }
    return numbers[static_cast<std::size_t>(element)];
  }
};

/// Tensors of each type, by the position that indexes them. Those of extremes have the ends of their types.
std::vector<Tensor> make_tensors(std::mt19937_64& random) {
  const auto draw = [&](NumberType type, std::vector<int64_t> sizes, double low, double high) {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    Tensor tensor{"", type, std::move(sizes), {}};
    for (int64_t i = 0; i < count; ++i) {
      const double number = std::uniform_real_distribution<double>(low, high)(random);
      // A multiple of 1/64, and the differences of two, are exact in float.
      tensor.numbers.push_back(type == NumberType::float32 ? std::floor(number * 64) / 64 : std::floor(number));
    }
    return tensor;
  };
  const auto named = [](std::string name, Tensor tensor) {
    tensor.name = std::move(name);
    return tensor;
  };
  Tensor ends32 = draw(NumberType::int32, {length_q}, -3, 160), ends64 = draw(NumberType::int64, {length_k}, -3, 50);
  for (std::size_t i = 0; i < ends32.numbers.size(); i += 5) ends32.numbers[i] = i % 2 == 0 ? 0x1p31 - 1 : -0x1p31;
  for (std::size_t i = 0; i < ends64.numbers.size(); i += 5) ends64.numbers[i] = i % 2 == 0 ? 0x1p60 : -0x1p60;
  return {named("of_entry", draw(NumberType::int64, {3}, 0, 60)),
          named("of_query", draw(NumberType::int32, {length_q}, 0, 160)),
          named("of_key", draw(NumberType::int64, {length_k}, 0, 60)),
          named("ranges", draw(NumberType::int32, {length_q, 2, 2}, -2, 160)),
          named("time_q", draw(NumberType::float32, {length_q}, 0, 2)),
          named("time_k", draw(NumberType::float32, {length_k}, 0, 2)),
          named("ends_q", ends32),
          named("ends_k", ends64)};
}

/// The conditions of the named masks, and one for each rule of src/codegen/condition.cpp.
std::vector<std::string> known_conditions() {
  return {
      "kv_idx <= q_idx + len_k - len_q",
      "(q_idx + len_k - len_q - kv_idx <= 20) & (kv_idx <= q_idx + len_k - len_q)",
      "(kv_idx < of_entry[batch]) | (kv_idx <= q_idx)",
      "((q_idx + len_k - len_q < of_entry[batch]) & (kv_idx < len_k - 30)) | ((kv_idx <= q_idx + len_k - len_q) & "
      "((kv_idx < len_k - 30) | "
      "(kv_idx >= len_k - 30 + floor((q_idx + 30 - len_q) / 8) * 8)))",
      "((kv_idx >= ranges[q_row, 0, 0]) & (kv_idx < ranges[q_row, 0, 1])) | ((kv_idx >= ranges[q_row, 1, 0]) & (kv_idx "
      "< ranges[q_row, 1, 1]))",
      "of_query[q_row] == of_key[kv_row]",
      "(of_query[q_row] // 20 == of_key[kv_row] // 20) & (kv_idx <= q_idx + 100)",
      "(kv_idx <= q_idx + 60) & (time_q[q_row] - time_k[kv_row] < 0.5)",
      "abs(q_idx - kv_idx) <= 9",
      "abs(kv_idx - 3 * q_idx) > 17",
      "q_idx // 16 != kv_idx // 16",
      "(kv_idx + 5) // 7 <= q_idx // 3",
      "q_idx // 3 < (kv_idx - 5) // 7",
      "-kv_idx <= q_idx - 70",
      "3 * kv_idx <= 2 * q_idx + 50",
      "-3 * kv_idx < 4 - q_idx",
      "min(kv_idx, q_idx + 40) <= 60 - q_idx",
      "max(kv_idx - 20, 3) > q_idx",
      "(q_idx * 7 + kv_idx * 3 + head) % 5 < 2",
      "kv_idx < ends_q[q_row]",
      "ends_q[q_row] <= kv_idx - 1",
      "q_idx > ends_k[kv_row] - 4",
      "q_idx + 5 >= ends_k[kv_row]",
      "abs(ends_k[kv_row]) < 20",
      "kv_idx < 0.75 * q_idx + 0.5",
      "0.5 * kv_idx < time_q[q_row] * 40",
      "(head == 2) & (batch != 2) & ~(kv_idx == 5 * q_idx)",
      "kv_idx < 0",
      "len_k > 0",
      "where(q_idx < 20, kv_idx, 150 - kv_idx) < 60",
      "where(kv_idx < 20, q_idx, 40 - q_idx) < 25",
      "~((kv_idx < of_query[q_row]) | ~((kv_idx > 4) & (of_key[kv_row] > q_idx)))",
  };
}

/// Conditions of whole numbers, from a seed.
class RandomCondition {
 public:
  explicit RandomCondition(std::uint64_t seed) : random_(seed) {}

  std::string condition(int depth) {
    if (depth == 0 || draw(3) == 0) {
      constexpr std::array<const char*, 6> signs = {"<", "<=", ">", ">=", "==", "!="};
      return fmt::format("({} {} {})", number(2), signs[draw(signs.size())], number(2));
    }
    if (draw(5) == 0) return fmt::format("~{}", condition(depth - 1));
    return fmt::format("({} {} {})", condition(depth - 1), draw(2) == 0 ? "&" : "|", condition(depth - 1));
  }

 private:
  std::size_t draw(std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_); }

  std::string number(int depth) {
    if (depth == 0 || draw(4) == 0) {
      constexpr std::array<const char*, 9> leaves = {"q_idx",           "kv_idx",         "kv_idx",
                                                     "len_k",           "len_q",          "of_entry[batch]",
                                                     "of_query[q_row]", "of_key[kv_row]", "ranges[q_row, 1, 0]"};
      const std::size_t leaf = draw(leaves.size() + 2);
      return leaf < leaves.size() ? leaves[leaf] : fmt::format("{}", draw(70));
    }
    const std::string a = number(depth - 1);
    switch (draw(9)) {
      case 0:
        return fmt::format("({} + {})", a, number(depth - 1));
      case 1:
      case 2:
        return fmt::format("({} - {})", a, number(depth - 1));
      case 3:
        return fmt::format("({} * {})", a, static_cast<int>(draw(7)) - 3);
      case 4:
        return fmt::format("({} // {})", a, 1 + draw(9));
      case 5:
        return fmt::format("abs({})", a);
      case 6:
        return fmt::format("min({}, {})", a, number(depth - 1));
      case 7:
        return fmt::format("max({}, {})", a, number(depth - 1));
      default:
        return fmt::format("(-{})", a);
    }
  }

  std::mt19937_64 random_;
};

std::vector<std::string> conditions() {
  const char* const asked = std::getenv("GDPA_RANDOM_CONDITIONS");
  const std::uint64_t random_conditions = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 64;
  std::vector<std::string> texts = known_conditions();
  for (std::uint64_t seed = 0; seed < random_conditions; ++seed) texts.push_back(RandomCondition(seed).condition(2));
  return texts;
}

struct BoundCondition {
  MaskExpression mask;
  std::vector<const Tensor*> tensors;
  unsigned types = 0;

  static BoundCondition of(const std::string& text, const std::vector<Tensor>& all) {
    std::vector<const Tensor*> read;
    std::vector<std::string> names;
    unsigned types = 0;
    for (const Tensor& tensor : all) {
      if (text.find(tensor.name + "[") == std::string::npos) continue;
      types |= static_cast<unsigned>(tensor.type) << (4 * read.size());
      read.push_back(&tensor);
      names.push_back(tensor.name);
    }
    return {MaskExpression(text, {}, names), read, types};
  }

  bool keeps(int64_t query, int64_t key) const {
    return mask.keeps({entry, head, query, key, length_q, length_k, query, key},
                      [this](const TensorRead& read) { return tensors[read.parameter]->at(read.indices); });
  }
};

/// For each condition, the words of both functions, for each first row, first column and row of the pair.
constexpr int64_t words_of_keys = length_q * origins * 2, words_of_condition = (length_q + length_k) * origins * 2;

std::string kernel_source(const std::vector<BoundCondition>& all) {
  std::string source =
      "#include \"common/fragment_columns.cuh\"\n"
      "#include \"common/index.cuh\"\n#include \"common/sequence.cuh\"\n\n"
      "// The columns of a range as a word.\n"
      "__device__ unsigned word_of(const gdpa::ColumnRange& range, int origin) {\n"
      "  const gdpa::ValidRange valid = (range & gdpa::ColumnRange{0, 0x7fffffff}).counted_from(origin);\n"
      "  unsigned word = 0;\n"
      "  for (int bit = 0; bit < 32; ++bit) word |= valid.holds(bit / 2 * 8 + bit % 2) ? 1u << bit : 0;\n"
      "  return word;\n"
      "}\n\n"
      "template <class Condition>\n"
      "__device__ void compute(const gdpa::Params& params, unsigned* words) {\n";
  source +=
      fmt::format("  constexpr int origins = {}, first_columns[] = {{{}}};\n", origins, fmt::join(first_columns, ", "));
  source += fmt::format("  const gdpa::SequencePair pair = gdpa::pair_in_batch(params, {}, {}, {}, {});\n", entry, head,
                        length_q, length_k);
  source += fmt::format(
      "  const Condition condition(params, pair);\n"
      "  for (int at = threadIdx.x; at < ({0} + {1}) * origins; at += blockDim.x) {{\n"
      "    const int row = at / origins;\n"
      "    const gdpa::FragmentColumns columns{{first_columns[at % origins]}};\n"
      "    unsigned valid[2] = {{}};\n"
      "    if (row < {0}) condition.template valid_keys<16>(row, columns, valid);\n"
      "    if (row >= {0}) condition.template valid_queries<8>(row - {0}, columns, valid);\n"
      "    gdpa::ColumnRange ranges[2];\n"
      "    bool has_ranges = false;\n"
      "    if constexpr (Condition::keys_are_range) {{\n"
      "      if (row < {0}) condition.template valid_keys<16>(row, gdpa::AllColumns(), ranges);\n"
      "      has_ranges |= row < {0};\n"
      "    }}\n"
      "    if constexpr (Condition::queries_are_range) {{\n"
      "      if (row >= {0}) condition.template valid_queries<8>(row - {0}, gdpa::AllColumns(), ranges);\n"
      "      has_ranges |= row >= {0};\n"
      "    }}\n"
      "    for (int half = 0; half < 2; ++half) {{\n"
      "      const bool is_same = !has_ranges || word_of(ranges[half], columns.origin) == valid[half];\n"
      "      words[at * 2 + half] = is_same ? valid[half] : ~valid[half];\n"
      "    }}\n"
      "  }}\n"
      "}}\n\n",
      length_q, length_k);
  std::string calls;
  for (std::size_t n = 0; n < all.size(); ++n) {
    source +=
        fmt::format("namespace c{} {{\n{}}}\n", n, activation::condition_source(all[n].mask.function(), all[n].types));
    calls += fmt::format("  if (blockIdx.x == {0}) compute<c{0}::Condition>(params[{0}], words + {0} * {1});\n", n,
                         words_of_condition);
  }
  return source + "extern \"C\" __global__ void check(const gdpa::Params* params, unsigned* words) {\n" + calls + "}\n";
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& objects) {
  const auto* const first = reinterpret_cast<const std::byte*>(objects.data());
  return {first, first + objects.size() * sizeof(T)};
}

/// Runs the kernel and returns all words.
std::vector<unsigned> words_on_gpu(const std::vector<BoundCondition>& all) {
  const Gpu& gpu = Gpu::get();
  const gpu::Driver& driver = gpu::Driver::get();
  const jit::Images images(jit::CacheSettings::from_environment());
  const std::string cubin =
      images.find_or_compile({kernel_source(all), "conditions"}, gpu::target_of(0).architecture).image;
  gpu::Module module = nullptr;
  gpu::KernelHandle kernel = nullptr;
  gpu::check(driver.module_load(&module, cubin.data()), "loading the kernel");
  gpu::check(driver.module_kernel(&kernel, module, "check"), "loading the kernel");

  std::vector<std::unique_ptr<GuardedMemory>> memory;
  std::vector<Params> params(all.size());
  for (std::size_t n = 0; n < all.size(); ++n) {
    for (std::size_t i = 0; i < all[n].tensors.size(); ++i) {
      const Tensor& tensor = *all[n].tensors[i];
      memory.push_back(std::make_unique<GuardedMemory>(gpu, tensor.bytes(), 0));
      BoundTensor& bound = params[n].mask_parameters[i];
      bound.data = memory.back()->data();
      bound.type = tensor.type;
      bound.rank = static_cast<int32_t>(tensor.sizes.size());
      int64_t stride = 1;
      for (std::size_t axis = tensor.sizes.size(); axis-- > 0; stride *= tensor.sizes[axis]) {
        bound.sizes[axis] = tensor.sizes[axis];
        bound.strides[axis] = stride;
      }
    }
  }
  std::vector<unsigned> words(all.size() * static_cast<std::size_t>(words_of_condition), 0xdeadbeefU);
  const GuardedMemory input(gpu, bytes_of(params), 0);
  GuardedMemory output(gpu, bytes_of(words), 0);
  void* addresses[] = {input.data(), output.data()};
  void* parameters[] = {&addresses[0], &addresses[1]};
  gpu::check(
      driver.launch(kernel, static_cast<unsigned>(all.size()), 1, 1, 64, 1, 1, 0, gpu.stream(), parameters, nullptr),
      "launching the kernel");
  output.fetch();
  std::memcpy(words.data(), output.content().data(), words.size() * sizeof(unsigned));
  gpu::check(driver.module_unload(module), "unloading the kernel");
  return words;
}

/// Compares the words of one function, which `words` points to, with keeps(row, column).
template <class Keeps>
void expect_words(const unsigned* words, int64_t rows, int64_t columns, int groups, Keeps keeps) {
  for (int64_t at = 0; at < rows * origins * 2; ++at) {
    const int64_t row = at / 2 / origins + at % 2 * 8;
    if (row >= rows) continue;
    const int64_t origin = first_columns[static_cast<std::size_t>(at / 2 % origins)];
    for (int bit = 0; bit < groups * 2; ++bit) {
      const int64_t column = origin + bit / 2 * 8 + bit % 2;
      if (column >= columns) continue;
      ASSERT_EQ((words[at] >> bit & 1U) != 0, keeps(row, column)) << "row " << row << ", column " << column;
    }
  }
}

TEST(Conditions, TheWordsOfARowHaveTheScoresOfTheDefinition) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  std::mt19937_64 random(7);
  const std::vector<Tensor> tensors = make_tensors(random);
  std::vector<BoundCondition> all;
  for (const std::string& text : conditions()) all.push_back(BoundCondition::of(text, tensors));
  const std::vector<unsigned> words = words_on_gpu(all);
  for (std::size_t n = 0; n < all.size() && !HasFatalFailure(); ++n) {
    const BoundCondition& condition = all[n];
    SCOPED_TRACE(condition.mask.text());
    const unsigned* const of_condition = words.data() + n * static_cast<std::size_t>(words_of_condition);
    {
      SCOPED_TRACE("rows are queries");
      expect_words(of_condition, length_q, length_k, 16,
                   [&](int64_t row, int64_t column) { return condition.keeps(row, column); });
    }
    SCOPED_TRACE("rows are keys");
    expect_words(of_condition + words_of_keys, length_k, length_q, 8,
                 [&](int64_t row, int64_t column) { return condition.keeps(column, row); });
  }
}

}  // namespace
}  // namespace gdpa::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
