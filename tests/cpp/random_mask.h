// RandomMask: a condition with random tensors, for RandomProblem, and the same condition in C++ for the reference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "random_score.h"

namespace gdpa::test {

class RandomMask {
 public:
  /// The number of conditions. Consecutive seeds give different conditions.
  static constexpr std::uint64_t conditions = 12;

  RandomMask(std::uint64_t seed, std::mt19937_64& random, const ScoreSizes& sizes) : random_(random) {
    choose(seed % conditions, sizes);
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
  void choose(std::uint64_t condition, const ScoreSizes& sizes) {
    const int64_t longest_q = std::max<int64_t>(1, sizes.longest_q), longest_k = std::max<int64_t>(1, sizes.longest_k);
    const int64_t batch = std::max<int64_t>(1, sizes.batch);
    const auto set = [&](std::string text, std::function<bool(const Place&)> keeps) {
      text_ = std::move(text);
      keeps_ = std::move(keeps);
    };
    const auto causal = [](const Place& p) { return p.j <= p.i + p.length_k - p.length_q; };
    switch (condition) {
      case 0:
        return set("j <= i + len_k - len_q", causal);
      case 1: {
        const auto lengths = integers("lengths", {batch}, 0, longest_k);
        return set("j < lengths[b]", [=](const Place& p) { return p.j < lengths({p.b}); });
      }
      case 2: {
        const auto lengths = integers("lengths", {batch}, 0, longest_k);
        return set("(j < lengths[b]) | (j <= i + len_k - len_q)",
                   [=](const Place& p) { return p.j < lengths({p.b}) || causal(p); });
      }
      case 3: {
        const auto of_q = integers("doc_q", {batch, longest_q}, 0, 2),
                   of_k = integers("doc_k", {batch, longest_k}, 0, 2);
        return set("doc_q[b, i] == doc_k[b, j]", [=](const Place& p) { return of_q({p.b, p.i}) == of_k({p.b, p.j}); });
      }
      case 4:
        return set("(i * 7 + j * 3 + h) % 5 < 2", [](const Place& p) { return (p.i * 7 + p.j * 3 + p.head) % 5 < 2; });
      case 5: {
        const auto t_q = numbers("t_q", {batch, longest_q}), t_k = numbers("t_k", {batch, longest_k});
        const auto width = numbers("width", {sizes.heads});
        return set("~((t_q[b, i] - t_k[b, j] < width[h]) & (j > 2))", [=](const Place& p) {
          return !(t_q({p.b, p.i}) - t_k({p.b, p.j}) < width({p.head}) && p.j > 2);
        });
      }
      case 6:
        return set("i // 16 != j // 16", [](const Place& p) { return p.i / 16 != p.j / 16; });
      case 7:
        return set("j < 0", [](const Place&) { return false; });
      case 8:
        return set("len_k > 0", [](const Place&) { return true; });
      case 9: {
        const auto ranges = integers("ranges", {batch, longest_q, 2}, 0, longest_k);
        return set("((j >= ranges[b, i, 0]) & (j < ranges[b, i, 1])) | (j == i)", [=](const Place& p) {
          return (p.j >= ranges({p.b, p.i, 0}) && p.j < ranges({p.b, p.i, 1})) || p.j == p.i;
        });
      }
      case 10:
        return set("(i < 64) & (j >= 64) & (b != 1)", [](const Place& p) { return p.i < 64 && p.j >= 64 && p.b != 1; });
      default: {
        // Differences of these numbers are exact only as integers.
        const auto t_q = integers("t_q", {batch, longest_q}, int64_t{1} << 40, (int64_t{1} << 40) + 9);
        const auto t_k = integers("t_k", {batch, longest_k}, int64_t{1} << 40, (int64_t{1} << 40) + 9);
        return set("(t_q[b, i] - t_k[b, j] < 3) | (h == 1)", [=](const Place& p) {
          return t_q({p.b, p.i}) - t_k({p.b, p.j}) < 3 || p.head == 1;
        });
      }
    }
  }

  /// The number of a tensor at the indices of its axes.
  template <class T>
  using Element = std::function<T(const std::vector<int64_t>&)>;

  Element<int64_t> integers(const char* name, const std::vector<int64_t>& sizes, int64_t low, int64_t high) {
    return add<int64_t>(name, DType::int64, sizes, [&] { return std::uniform_int_distribution(low, high)(random_); });
  }
  /// Multiples of 1/64, whose differences are exact in float.
  Element<float> numbers(const char* name, const std::vector<int64_t>& sizes) {
    return add<float>(name, DType::float32, sizes,
                      [&] { return static_cast<float>(std::uniform_int_distribution(-64, 64)(random_)) / 64; });
  }

  template <class T, class Draw>
  Element<T> add(const char* name, DType dtype, const std::vector<int64_t>& sizes, const Draw& draw) {
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
  std::string text_;
  std::function<bool(const Place&)> keeps_;
  std::vector<DrawnTensor> tensors_;
};

}  // namespace gdpa::test
