// RandomMask: a condition with random tensors, for RandomProblem, and the same condition in C++ for the reference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include "random_score.h"

namespace gdpa::test {

class RandomMask {
 public:
  /// The number of conditions. Seeds below it give these conditions, and other seeds also combinations of two. Seeds
  /// from `conditions` to 2 * conditions - 1 give combinations only.
  static constexpr std::uint64_t conditions = 17;

  RandomMask(std::uint64_t seed, std::mt19937_64& random, const ScoreSizes& sizes) : random_(random), sizes_(sizes) {
    const Condition drawn = draw(seed);
    text_ = drawn.text;
    keeps_ = drawn.keeps;
  }

  const std::string& text() const { return text_; }
  const std::vector<DrawnTensor>& tensors() const { return tensors_; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const DrawnTensor& tensor : tensors_) names.push_back(tensor.name);
    return names;
  }
  bool keeps(const Place& place) const { return keeps_(place); }

 private:
  struct Condition {
    std::string text;
    std::function<bool(const Place&)> keeps;
  };

  Condition draw(std::uint64_t seed) {
    const Condition first = condition(seed % conditions, "");
    if (seed / conditions % 2 == 0) return first;
    // The text depends on the seed alone, so that problems with other sizes have the same kernels.
    const Condition second = condition((seed / 2 / conditions + 7 * (seed % conditions) + 5) % conditions, "_2");
    switch (seed % 4) {
      case 0:
        return {"(" + first.text + ") & (" + second.text + ")",
                [=](const Place& p) { return first.keeps(p) && second.keeps(p); }};
      case 1:
        return {"(" + first.text + ") | (" + second.text + ")",
                [=](const Place& p) { return first.keeps(p) || second.keeps(p); }};
      case 2:
        return {"(" + first.text + ") & ~(" + second.text + ")",
                [=](const Place& p) { return first.keeps(p) && !second.keeps(p); }};
      default:
        return {"~(" + first.text + ") | (" + second.text + ")",
                [=](const Place& p) { return !first.keeps(p) || second.keeps(p); }};
    }
  }

  /// The rule of the docstring of gdpa.mask.hstu (python/gdpa/mask.py).
  static bool hstu_keeps(const Place& p, int64_t contexts, int64_t targets, int64_t group, int64_t window) {
    const int64_t row = p.i + p.length_k - p.length_q, end = p.length_k - targets;
    if (row < contexts && p.j < end) return true;
    if (p.j > row || (row - p.j > window && p.j >= contexts)) return false;
    const int64_t distance = row - end;
    const int64_t floor = distance >= 0 ? distance / group : -((-distance + group - 1) / group);
    return p.j < end || p.j >= end + floor * group;
  }

  /// The names of the tensors end in `suffix`.
  Condition condition(std::uint64_t number, const std::string& suffix) {
    const int64_t longest_q = std::max<int64_t>(1, sizes_.longest_q),
                  longest_k = std::max<int64_t>(1, sizes_.longest_k);
    const int64_t batch = std::max<int64_t>(1, sizes_.batch);
    const auto named = [&](const char* text) { return fmt::format(fmt::runtime(text), suffix); };
    const auto causal = [](const Place& p) { return p.j <= p.i + p.length_k - p.length_q; };
    switch (number) {
      case 0:
        return {"kv_idx <= q_idx + len_k - len_q", causal};
      case 1: {
        const auto lengths = integers("lengths" + suffix, {batch}, 0, longest_k);
        return {named("prefix(lengths{0}[batch])"), [=](const Place& p) { return p.j < lengths({p.b}); }};
      }
      case 2: {
        const auto lengths = integers("lengths" + suffix, {batch}, 0, longest_k);
        return {named("(kv_idx < lengths{0}[batch]) | causal()"),
                [=](const Place& p) { return p.j < lengths({p.b}) || causal(p); }};
      }
      case 3: {
        const auto of_q = integers("doc_q" + suffix, {batch, longest_q}, 0, 2),
                   of_k = integers("doc_k" + suffix, {batch, longest_k}, 0, 2);
        return {named("doc_q{0}[batch, q_idx] == doc_k{0}[batch, kv_idx]"), [=](const Place& p) {
                  return of_q({p.b, p.i}) == of_k({p.b, p.j});
                }};
      }
      case 4:
        return {"(q_idx * 7 + kv_idx * 3 + head) % 5 < 2",
                [](const Place& p) { return (p.i * 7 + p.j * 3 + p.head) % 5 < 2; }};
      case 5: {
        const auto t_q = numbers("t_q" + suffix, {batch, longest_q}), t_k = numbers("t_k" + suffix, {batch, longest_k});
        const auto width = numbers("width" + suffix, {sizes_.heads});
        return {named("~((t_q{0}[batch, q_idx] - t_k{0}[batch, kv_idx] < width{0}[head]) & (kv_idx > 2))"),
                [=](const Place& p) {
                  return !(t_q({p.b, p.i}) - t_k({p.b, p.j}) < width({p.head}) && p.j > 2);
                }};
      }
      case 6:
        return {"q_idx // 16 != kv_idx // 16", [](const Place& p) { return p.i / 16 != p.j / 16; }};
      case 7:
        return {"kv_idx < 0", [](const Place&) { return false; }};
      case 8:
        return {"len_k > 0", [](const Place&) { return true; }};
      case 9: {
        const auto ranges = integers("ranges" + suffix, {batch, longest_q, 2}, 0, longest_k);
        return {named("interval(ranges{0}[batch, q_idx, 0], ranges{0}[batch, q_idx, 1]) | (kv_idx == q_idx)"),
                [=](const Place& p) {
                  return (p.j >= ranges({p.b, p.i, 0}) && p.j < ranges({p.b, p.i, 1})) || p.j == p.i;
                }};
      }
      case 10:  // leaves tiles, rows, columns and a sequence empty
        return {"(q_idx < 64) & (kv_idx >= 64) & (batch != 1)",
                [](const Place& p) { return p.i < 64 && p.j >= 64 && p.b != 1; }};
      case 11: {
        // Differences of these numbers are exact only as integers.
        const auto t_q = integers("t_q" + suffix, {batch, longest_q}, int64_t{1} << 40, (int64_t{1} << 40) + 9);
        const auto t_k = integers("t_k" + suffix, {batch, longest_k}, int64_t{1} << 40, (int64_t{1} << 40) + 9);
        return {named("(t_q{0}[batch, q_idx] - t_k{0}[batch, kv_idx] < 3) | (head == 1)"), [=](const Place& p) {
                  return t_q({p.b, p.i}) - t_k({p.b, p.j}) < 3 || p.head == 1;
                }};
      }
      case 12: {
        const auto contexts = integers("contexts" + suffix, {batch}, 0, 9),
                   targets = integers("targets" + suffix, {batch}, 0, 40);
        return {named("hstu(contexts{0}[batch], targets{0}[batch], 3, 20)"),
                [=](const Place& p) { return hstu_keeps(p, contexts({p.b}), targets({p.b}), 3, 20); }};
      }
      case 13:
        return {"window(20, 3)", [](const Place& p) {
                  const int64_t distance = p.i + p.length_k - p.length_q - p.j;
                  return distance <= 20 && distance >= -3;
                }};
      case 14: {
        const auto ranges = integers("ranges" + suffix, {batch, sizes_.heads, longest_q, 2}, 0, longest_k);
        return {named("interval(ranges{0}[batch, head, q_idx, 0], ranges{0}[batch, head, q_idx, 1])"),
                [=](const Place& p) {
                  return p.j >= ranges({p.b, p.head, p.i, 0}) && p.j < ranges({p.b, p.head, p.i, 1});
                }};
      }
      case 15:  // whole rows and columns are empty, but no tile
        return {"(abs(q_idx - kv_idx) < 30) & (q_idx % 3 != 1) & (kv_idx % 5 != 2)",
                [](const Place& p) { return std::abs(p.i - p.j) < 30 && p.i % 3 != 1 && p.j % 5 != 2; }};
      default: {  // a number for each packed query
        const auto group = integers("group" + suffix, {std::max<int64_t>(1, sizes_.rows_q)}, 0, 3);
        return {named("min(kv_idx // 40, 3) <= group{0}[q_row]"),
                [=](const Place& p) { return std::min<int64_t>(p.j / 40, 3) <= group({p.row_q}); }};
      }
    }
  }

  /// The number of a tensor at the indices of its axes.
  template <class T>
  using Element = std::function<T(const std::vector<int64_t>&)>;

  Element<int64_t> integers(const std::string& name, const std::vector<int64_t>& sizes, int64_t low, int64_t high) {
    return add<int64_t>(name, DType::int64, sizes, [&] { return std::uniform_int_distribution(low, high)(random_); });
  }
  /// Multiples of 1/64, whose differences are exact in float.
  Element<float> numbers(const std::string& name, const std::vector<int64_t>& sizes) {
    return add<float>(name, DType::float32, sizes,
                      [&] { return static_cast<float>(std::uniform_int_distribution(-64, 64)(random_)) / 64; });
  }

  template <class T, class Draw>
  Element<T> add(const std::string& name, DType dtype, const std::vector<int64_t>& sizes, const Draw& draw) {
    DrawnTensor tensor{name, Strided::contiguous(dtype, sizes), {}, false};
    std::vector<T> drawn;
    tensor.data.for_each([&](std::byte* at) {
      const T number = draw();
      std::memcpy(at, &number, sizeof(number));
      drawn.push_back(number);
    });
    tensors_.push_back(tensor);
    return [sizes, drawn](const std::vector<int64_t>& indices) {
      int64_t element = 0;
      for (std::size_t axis = 0; axis < sizes.size(); ++axis) element = element * sizes[axis] + indices[axis];
      return drawn[static_cast<std::size_t>(element)];
    };
  }

  std::mt19937_64& random_;
  ScoreSizes sizes_;
  std::string text_;
  std::function<bool(const Place&)> keeps_;
  std::vector<DrawnTensor> tensors_;
};

}  // namespace gdpa::test
