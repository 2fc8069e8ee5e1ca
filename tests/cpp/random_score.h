// Random expressions of a score that read positions and tensors of the call: a text for gdpa, the tensors, and as an
// independent reference the value, the derivative, and the gradients of the tensors.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "random_expression.h"
#include "reference.h"
#include "strided.h"

namespace gdpa::test {

/// The sizes of a problem that tensors depend on.
struct ScoreSizes {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t longest_q = 0;
  int64_t longest_k = 0;
  int64_t rows_q = 0;  ///< of all sequences of the packed side
  int64_t rows_k = 0;
};

/// A tensor of the call, and the numbers in it.
struct DrawnTensor {
  std::string name;
  Strided data;
  std::vector<double> numbers;
  bool is_floating = true;

  int64_t size(std::size_t axis) const { return data.sizes()[axis]; }
};

/// An input of the expression: a text and its number at a place. An input that is an element of a floating tensor has
/// the number of the tensor, and the position of the element.
struct DrawnInput {
  std::string text;
  std::function<double(const Place&)> number;
  int tensor = -1;
  std::function<std::size_t(const Place&)> element = {};
};

class RandomScore {
 public:
  /// `function` is an expression of s or the name of a function. The text and the dtypes depend only on `seed`, so that
  /// problems with other sizes and numbers have the same kernels. `for_cpu`: tensors may be float64.
  RandomScore(std::uint64_t seed, std::uint64_t seed_of_numbers, const ScoreSizes& sizes, const DrawnFunction& function,
              bool for_cpu)
      : random_(seed), numbers_(seed_of_numbers), sizes_(sizes), functions_({function}), for_cpu_(for_cpu) {
    inner_ = static_cast<int>(random_() % 3);
    outer_ = static_cast<int>(random_() % 3);
    if (random_() % 5 == 0) add_functions();
    if (!is_name(function.text) && !std::regex_search(function.text, score_name())) inner_ = 2;  // a constant
    if (inner_ == 2 && outer_ == 0) outer_ = 1;
    std::string argument = "s";
    if (inner_ == 0) argument = fmt::format("(s + {})", draw_input());
    if (inner_ == 1) argument = fmt::format("({} * s)", draw_input());
    const std::string outer = outer_ == 0 ? "" : draw_input();
    const std::size_t count = functions_.size() == 1 ? 1 : static_cast<std::size_t>(sizes.heads);
    for (std::size_t head = 0; head < count; ++head) {
      std::string text = called(function_of(static_cast<int64_t>(head)).text, argument);
      if (outer_ == 1) text = fmt::format("{} * {}", outer, text);
      if (outer_ == 2) text = fmt::format("{} + {}", text, outer);
      text_ += (head > 0 ? "; " : "") + text;
    }
  }

  const std::string& text() const { return text_; }
  std::vector<DrawnTensor>& tensors() { return tensors_; }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const DrawnTensor& tensor : tensors_) names.push_back(tensor.name);
    return names;
  }

  double value(double score, const Place& place) const { return evaluate(score, place, -1).value; }

  /// The derivative with respect to the score (-1) or an input.
  double derivative(double score, const Place& place, int by = -1) const { return evaluate(score, place, by).slope; }

  /// Adds the gradients of the tensors at one score. `squares` has the sums of the squares of the terms.
  void add_gradients(double score, const Place& place, double dp, std::vector<std::vector<double>>& sums,
                     std::vector<double>& squares) const {
    if (sums.empty()) {
      squares.resize(tensors_.size());
      for (const DrawnTensor& tensor : tensors_) sums.emplace_back(tensor.numbers.size());
    }
    for (std::size_t n = 0; n < inputs_.size(); ++n) {
      if (inputs_[n].tensor < 0) continue;
      const double term = dp * derivative(score, place, static_cast<int>(n));
      const auto tensor = static_cast<std::size_t>(inputs_[n].tensor);
      sums[tensor][inputs_at(place).elements[n]] += term;
      squares[tensor] += term * term;
    }
  }

 private:
  using Element = std::function<int64_t(const Place&)>;

  /// An index of a tensor, and a size of its axis if the index is a position or a row.
  struct Axis {
    std::string text;
    Element index;
    int64_t size = 0;
  };

  static const std::regex& score_name() {
    static const std::regex name("\\bs\\b");
    return name;
  }
  static bool is_name(const std::string& text) {
    return std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
           std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
  }
  /// The text of a function of an argument.
  static std::string called(const std::string& text, const std::string& argument) {
    if (is_name(text)) return fmt::format("{}({})", text, argument);
    return "(" + std::regex_replace(text, score_name(), argument) + ")";
  }

  /// The functions of a list, which repeats them: with and without guards, and with other factors of the score.
  void add_functions() {
    const auto sigmoid = [](double s) { return 1 / (1 + std::exp(-s)); };
    functions_.push_back({"silu", [sigmoid](Dual s) {
                            const double p = sigmoid(s.value);
                            return Dual{s.value * p, (p + s.value * p * (1 - p)) * s.slope};
                          }});
    functions_.push_back({"0.5 * tanh(0.3 * s)", [](Dual s) {
                            const double t = std::tanh(0.3 * s.value);
                            return Dual{0.5 * t, 0.15 * (1 - t * t) * s.slope};
                          }});
  }
  const DrawnFunction& function_of(int64_t head) const {
    return functions_[static_cast<std::size_t>(head) % functions_.size()];
  }

  int64_t uniform(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  template <class Choice>
  Choice pick(std::initializer_list<Choice> choices) {
    return choices.begin()[uniform(0, static_cast<int64_t>(choices.size()) - 1)];
  }
  /// A size of a tensor that is not in the text.
  int64_t pick_size(std::initializer_list<int64_t> choices) {
    return std::max<int64_t>(1, choices.begin()[numbers_() % choices.size()]);
  }

  /// The inputs at a place. Consecutive evaluations at one place compute them once.
  struct InputsAt {
    Place place;
    std::array<double, 2> numbers = {};
    std::array<std::size_t, 2> elements = {};
  };

  const InputsAt& inputs_at(const Place& place) const {
    if (last_ && last_->place == place) return *last_;
    last_ = InputsAt{place};
    for (std::size_t n = 0; n < inputs_.size(); ++n) {
      last_->numbers[n] = inputs_[n].number(place);
      if (inputs_[n].tensor >= 0) last_->elements[n] = inputs_[n].element(place);
    }
    return *last_;
  }

  Dual evaluate(double score, const Place& place, int by) const {
    const InputsAt& at = inputs_at(place);
    int next = 0;
    const auto input = [&] {
      const int n = next++;
      return Dual{at.numbers[static_cast<std::size_t>(n)], by == n ? 1.0 : 0.0};
    };
    Dual x{score, by < 0 ? 1.0 : 0.0};
    if (inner_ == 0) x = x + input();
    if (inner_ == 1) x = input() * x;
    Dual y = function_of(place.head).dual(x);
    if (outer_ == 1) y = input() * y;
    if (outer_ == 2) y = y + input();
    return y;
  }

  DType floating() {
    return for_cpu_ ? pick({DType::float32, DType::float64, DType::bfloat16, DType::float16})
                    : pick({DType::float32, DType::bfloat16, DType::float16});
  }

  static int64_t at_most(int64_t index, int64_t size) { return std::clamp<int64_t>(index, 0, size - 1); }

  std::size_t add_tensor(const char* stem, DType dtype, const std::vector<int64_t>& sizes, double deviation) {
    DrawnTensor tensor;
    tensor.name = fmt::format("{}{}", stem, tensors_.size());
    tensor.data = Strided::contiguous(dtype, sizes);
    tensor.data.fill_normal(numbers_, deviation);
    tensor.numbers = tensor.data.values();
    tensors_.push_back(std::move(tensor));
    return tensors_.size() - 1;
  }

  std::size_t add_integers(const char* stem, const std::vector<int64_t>& sizes, int64_t low, int64_t high) {
    const bool is_wide = uniform(0, 1) == 0;
    DrawnTensor tensor;
    tensor.name = fmt::format("{}{}", stem, tensors_.size());
    tensor.data = Strided::contiguous(is_wide ? DType::int64 : DType::int32, sizes);
    tensor.is_floating = false;
    tensor.data.for_each([&](std::byte* at) {
      const int64_t number = std::uniform_int_distribution<int64_t>(low, high)(numbers_);
      const auto narrow = static_cast<std::int32_t>(number);
      is_wide ? std::memcpy(at, &number, 8) : std::memcpy(at, &narrow, 4);
      tensor.numbers.push_back(static_cast<double>(number));
    });
    tensors_.push_back(std::move(tensor));
    return tensors_.size() - 1;
  }

  /// An axis whose index is a position or a row of one side. An axis of rows has an element for each row, or is
  /// broadcast.
  Axis position_axis(bool of_query) {
    const bool has_rows = uniform(0, 1) == 0;
    const int64_t longest = of_query ? sizes_.longest_q : sizes_.longest_k;
    const int64_t rows = of_query ? sizes_.rows_q : sizes_.rows_k;
    if (has_rows) return row_axis(of_query, pick_size({rows, rows, rows + 3, 1}));
    return {of_query ? "q_idx" : "kv_idx", [of_query](const Place& place) { return of_query ? place.i : place.j; },
            pick_size({rows, longest, longest / 2, longest + 3, 1})};
  }
  Axis row_axis(bool of_query, int64_t size) {
    return {of_query ? "q_row" : "kv_row",
            [of_query](const Place& place) { return of_query ? place.row_q : place.row_k; }, size};
  }

  /// The read of a tensor: the text, and the position of the element, by the rules of the documentation.
  DrawnInput read(std::size_t tensor, const std::vector<Axis>& axes) {
    std::vector<std::string> texts;
    std::vector<Element> indices;
    for (std::size_t a = 0; a < axes.size(); ++a) {
      texts.push_back(axes[a].text);
      indices.push_back([index = axes[a].index, size = tensors_[tensor].size(a)](const Place& place) {
        return at_most(index(place), size);
      });
    }
    DrawnInput input;
    input.text = fmt::format("{}[{}]", tensors_[tensor].name, fmt::join(texts, ", "));
    input.element = [indices, sizes = tensors_[tensor].data.sizes()](const Place& place) {
      int64_t element = 0;
      for (std::size_t a = 0; a < indices.size(); ++a) element = element * sizes[a] + indices[a](place);
      return static_cast<std::size_t>(element);
    };
    input.number = [numbers = tensors_[tensor].numbers, element = input.element](const Place& place) {
      return numbers[element(place)];
    };
    if (tensors_[tensor].is_floating) input.tensor = static_cast<int>(tensor);
    return input;
  }

  Axis head_axis() {
    return {"head", [](const Place& place) { return place.head; }};
  }
  Axis batch_axis() {
    return {"batch", [](const Place& place) { return place.b; }};
  }

  std::string draw_input() {
    inputs_.push_back(drawn_input());
    return inputs_.back().text;
  }

  DrawnInput drawn_input() {
    const int64_t heads = pick_size({1, sizes_.heads, sizes_.heads});
    switch (uniform(0, 9)) {
      case 0: {  // a number for each head
        const bool is_scalar = uniform(0, 1) == 0;
        const DType dtype = for_cpu_ ? pick({DType::float32, DType::float64}) : DType::float32;
        const std::vector<int64_t> shape = is_scalar ? std::vector<int64_t>{} : std::vector{sizes_.heads};
        const std::size_t tensor = add_tensor("p", dtype, shape, 0.7);
        DrawnInput input;
        input.text = tensors_[tensor].name;
        input.tensor = static_cast<int>(tensor);
        input.element = [is_scalar](const Place& place) {
          return is_scalar ? std::size_t{0} : static_cast<std::size_t>(place.head);
        };
        input.number = [numbers = tensors_[tensor].numbers, element = input.element](const Place& place) {
          return numbers[element(place)];
        };
        return input;
      }
      case 1:  // positions as numbers
        return {"((q_idx - kv_idx) / (len_q + len_k + 1))", [](const Place& place) {
                  return static_cast<double>(place.i - place.j) /
                         static_cast<double>(place.length_q + place.length_k + 1);
                }};
      case 2:
        return {"(0.3 * head - 0.2 * min(batch, 3))", [](const Place& place) {
                  return 0.3 * static_cast<double>(place.head) -
                         0.2 * static_cast<double>(std::min<int64_t>(place.b, 3));
                }};
      case 3: {  // a table by the distance
        const int64_t size = pick<int64_t>({1, 5, 40, 300});
        const int64_t shift = uniform(0, 20);
        const std::size_t tensor = add_tensor("table", floating(), {heads, size}, 0.7);
        return read(tensor, {head_axis(),
                             {fmt::format("clamp(q_idx - kv_idx + {}, 0, {})", shift, size - 1),
                              [shift](const Place& place) { return place.i - place.j + shift; }}});
      }
      case 4: {  // without a clamp in the text, by blocks
        const int64_t step = uniform(2, 50);
        const std::size_t tensor = add_tensor("blocks", floating(), {pick_size({1, 4, 12}), pick_size({1, 5, 9})}, 0.7);
        const auto block = [step](const char* name, bool of_query) {
          return Axis{fmt::format("floor({} / {})", name, step),
                      [=](const Place& place) { return (of_query ? place.i : place.j) / step; }};
        };
        return read(tensor, {block("q_idx", true), block("kv_idx", false)});
      }
      case 5: {  // buckets of time, which has a number for each token
        const int64_t size = uniform(1, 12);
        const std::size_t table = add_tensor("w", floating(), {size, heads}, 0.7);
        const bool is_integer = uniform(0, 1) == 0;
        const auto times = [&](int64_t rows) {
          const std::vector<int64_t> sizes = {std::max<int64_t>(1, rows)};
          return is_integer ? add_integers("t", sizes, -2000, 2000) : add_tensor("t", DType::float32, sizes, 500);
        };
        const std::size_t of_q = times(sizes_.rows_q), of_k = times(sizes_.rows_k);
        const DrawnInput q = read(of_q, {row_axis(true, 0)}), k = read(of_k, {row_axis(false, 0)});
        return read(table, {{fmt::format("clamp(floor(log2(1 + abs({} - {}))), 0, {})", q.text, k.text, size - 1),
                             [q = q.number, k = k.number](const Place& place) {
                               return static_cast<int64_t>(std::floor(std::log2(1 + std::fabs(q(place) - k(place)))));
                             }},
                            head_axis()});
      }
      case 6: {  // a dense bias
        const int64_t batch = pick_size({1, sizes_.batch});
        const Axis query = position_axis(true), key = position_axis(false);
        const std::size_t tensor = add_tensor("bias", floating(), {batch, heads, query.size, key.size}, 0.7);
        return read(tensor, {batch_axis(), head_axis(), query, key});
      }
      case 7: {
        const Axis query = position_axis(true), key = position_axis(false);
        const std::size_t tensor = add_tensor("bias", floating(), {heads, query.size, key.size}, 0.7);
        return read(tensor, {head_axis(), query, key});
      }
      case 8: {
        const Axis axis = position_axis(uniform(0, 1) == 0);
        return read(add_tensor("u", floating(), {axis.size}, 0.7), {axis});
      }
      default: {  // an integer tensor as an index
        const Axis axis = position_axis(uniform(0, 1) == 0);
        const int64_t size = pick_size({1, 7, 20});
        const DrawnInput index = read(add_integers("n", {axis.size}, -3, 25), {axis});
        const std::size_t tensor = add_tensor("e", floating(), {size, heads}, 0.7);
        return read(
            tensor,
            {{index.text, [number = index.number](const Place& place) { return static_cast<int64_t>(number(place)); }},
             head_axis()});
      }
    }
  }

  std::mt19937_64 random_;   ///< of the text and the dtypes
  std::mt19937_64 numbers_;  ///< of the sizes and numbers
  ScoreSizes sizes_;
  std::vector<DrawnFunction> functions_;  ///< of the heads: one, or the functions of a list
  bool for_cpu_;
  int inner_ = 0;  ///< f of s + input, input * s, s
  int outer_ = 0;  ///< f, input * f, f + input
  std::vector<DrawnInput> inputs_;
  std::vector<DrawnTensor> tensors_;
  std::string text_;
  mutable std::optional<InputsAt> last_;
};

}  // namespace gdpa::test
