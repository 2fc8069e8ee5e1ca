// Reads --tensor and --tensor-gradients.
#include "tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <sstream>

#include "command.h"
#include "npy.h"
#include "problem.h"

namespace gdpa::tool {
namespace {

constexpr std::size_t most_axes = TensorView::max_rank;

struct NameAndValue {
  std::string name;
  std::string value;
};

NameAndValue split_text(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw UsageError(fmt::format(
        "--tensor: expected NAME=VALUE with a number, a .npy file or a generator, such as table=randn:4,4096; got '{}'",
        text));
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::vector<std::string> words_of(const std::string& text, char separator) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, separator);) words.push_back(word);
  return words;
}

std::optional<double> number_of(const std::string& text) {
  std::istringstream stream(text);
  double number = 0;
  if (stream >> number && stream.eof()) return number;
  return std::nullopt;
}

int64_t rows_of(const std::vector<int64_t>& lengths, Form form) {
  return form == Form::shared ? lengths.front() : sum(lengths);
}

/// Returns the size of an axis: a number, or the name of a size of the problem.
int64_t size_of(const std::string& word, const std::string& who, const Problem& problem) {
  const std::map<std::string, int64_t> sizes = {
      {"batch", problem.batch()},
      {"heads", problem.heads_q},
      {"length_q", maximum(problem.lengths_q)},
      {"length_k", maximum(problem.lengths_k)},
      {"tokens_q", rows_of(problem.lengths_q, problem.form_q)},
      {"tokens_k", rows_of(problem.lengths_k, problem.form_k)},
  };
  const auto named = sizes.find(word);
  const std::optional<double> number = named == sizes.end() ? number_of(word) : static_cast<double>(named->second);
  constexpr double largest = 0x1p40;
  if (!number || *number < 1 || *number > largest || *number != static_cast<double>(static_cast<int64_t>(*number))) {
    throw UsageError(
        fmt::format("{}: expected sizes of 1 or more, or batch, heads, length_q, length_k, tokens_q, "
                    "tokens_k; got '{}'",
                    who, word));
  }
  return static_cast<int64_t>(*number);
}

DType dtype_of(const std::vector<std::string>& parts, const std::string& who) {
  if (parts.size() == 2) return DType::float32;
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    if (parts[2] == name(dtype)) return dtype;
  }
  throw UsageError(fmt::format("{}: expected dtype float32, float64, bfloat16 or float16; got '{}'", who, parts[2]));
}

/// Returns nothing for a text that is no generator.
std::optional<NamedTensor> generated(const NameAndValue& text, const std::string& who, const Problem& problem) {
  const std::vector<std::string> parts = words_of(text.value, ':');
  const bool is_times = parts[0] == "times";
  if (parts[0] != "randn" && !is_times) return std::nullopt;
  if (parts.size() != 2 && (is_times || parts.size() != 3)) {
    throw UsageError(fmt::format(
        "{}: expected {}; got '{}'", who,
        is_times ? "times:SHAPE" : "randn:SHAPE or randn:SHAPE:DTYPE, such as randn:4,4096:bfloat16", text.value));
  }
  NamedTensor tensor{text.name, DType::int64, {}, NamedTensor::Numbers::times};
  if (!is_times) {
    tensor.dtype = dtype_of(parts, who);
    tensor.numbers = NamedTensor::Numbers::normal;
  }
  for (const std::string& word : words_of(parts[1], ',')) tensor.sizes.push_back(size_of(word, who, problem));
  return tensor;
}

template <class To, class From>
std::vector<std::byte> converted(const std::vector<std::byte>& data) {
  std::vector<std::byte> result(data.size() / sizeof(From) * sizeof(To));
  for (std::size_t i = 0; i < data.size() / sizeof(From); ++i) {
    From number;
    std::memcpy(&number, data.data() + i * sizeof(From), sizeof(From));
    const To stored = static_cast<To>(number);
    std::memcpy(result.data() + i * sizeof(To), &stored, sizeof(To));
  }
  return result;
}

NamedTensor scalar(const std::string& name, double number) {
  NamedTensor tensor{name, DType::float64, {}};
  tensor.data.resize(sizeof(number));
  std::memcpy(tensor.data.data(), &number, sizeof(number));
  return tensor;
}

NamedTensor from_file(const NameAndValue& text, const std::string& who) {
  if (!std::filesystem::exists(text.value)) {
    throw UsageError(fmt::format(
        "{}: expected a number, a .npy file, randn:SHAPE or times:SHAPE; got '{}', and there is no such file", who,
        text.value));
  }
  NpyArray array = read_npy(text.value);
  return {text.name, array.dtype, std::move(array.sizes), NamedTensor::Numbers::given, std::move(array.data)};
}

NamedTensor parse_tensor(const std::string& argument, const Problem& problem) {
  const NameAndValue text = split_text(argument);
  const std::string who = fmt::format("--tensor {}", text.name);
  if (std::optional<NamedTensor> tensor = generated(text, who, problem)) return *std::move(tensor);
  const std::optional<double> number = number_of(text.value);
  return number ? scalar(text.name, *number) : from_file(text, who);
}

void check_shape(const NamedTensor& tensor) {
  const auto is_empty = [](int64_t size) { return size == 0; };
  if (tensor.sizes.size() <= most_axes && std::none_of(tensor.sizes.begin(), tensor.sizes.end(), is_empty)) return;
  throw UsageError(fmt::format("--tensor {}: expected at most {} axes with at least one element each; got shape ({})",
                               tensor.name, most_axes, fmt::join(tensor.sizes, ", ")));
}

void mark_gradients(const std::string& text, std::vector<NamedTensor>& tensors) {
  if (text == "none") return;
  if (text == "all") {
    for (NamedTensor& tensor : tensors) tensor.wants_gradient = tensor.is_floating();
    return;
  }
  for (const std::string& word : words_of(text, ',')) {
    const auto is_named = [&](const NamedTensor& tensor) { return tensor.name == word && tensor.is_floating(); };
    const auto found = std::find_if(tensors.begin(), tensors.end(), is_named);
    if (found == tensors.end()) {
      throw UsageError(fmt::format(
          "--tensor-gradients: expected all, none, or names of tensors of floating-point numbers; got '{}'", word));
    }
    found->wants_gradient = true;
  }
}

}  // namespace

bool occurs(const std::string& name, const std::string& expression) {
  static const std::regex identifier("[A-Za-z_][A-Za-z0-9_]*");
  return std::regex_match(name, identifier) && std::regex_search(expression, std::regex("\\b" + name + "\\b"));
}

std::vector<NamedTensor> parse_tensors(const TensorOptions& options, const std::string& expression,
                                       const Problem& problem) {
  std::vector<NamedTensor> tensors;
  for (const std::string& text : options.values) {
    NamedTensor& tensor = tensors.emplace_back(parse_tensor(text, problem));
    check_shape(tensor);
    if (tensor.dtype == DType::float64 && problem.dtype != DType::float64) {
      tensor.data = converted<float, double>(tensor.data);
      tensor.dtype = DType::float32;
    }
  }
  mark_gradients(options.gradients, tensors);
  std::erase_if(tensors, [&](const NamedTensor& tensor) { return !occurs(tensor.name, expression); });
  return tensors;
}

void refuse_unused_tensors(const TensorOptions& options, const std::vector<std::string>& expressions) {
  for (const std::string& text : options.values) {
    const std::string name = split_text(text).name;
    if (std::any_of(expressions.begin(), expressions.end(),
                    [&](const std::string& expression) { return occurs(name, expression); })) {
      continue;
    }
    throw UsageError(
        fmt::format("--tensor: expected a name in \"{}\"; got '{}'", fmt::join(expressions, "\", \""), name));
  }
}

}  // namespace gdpa::tool
