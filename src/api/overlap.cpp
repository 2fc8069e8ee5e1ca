// See overlap.h.
#include "api/overlap.h"

#include <algorithm>

#include "api/message.h"

namespace gdpa::api {
namespace {

/// A stride, and the smallest and the largest multiple of it that an address may contain.
struct Step {
  int64_t stride;
  int64_t least;
  int64_t most;

  int64_t lowest() const { return stride * least; }
  int64_t highest() const { return stride * most; }
};

/// Searches for a byte that belongs to both views. Such a byte exists if a sum of multiples of the strides of one view,
/// minus a sum of multiples of the strides of the other view, equals the distance of the first bytes.
class Search {
 public:
  Search(const Bytes& one, const Bytes& other) {
    add(one, 1);
    add(other, -1);
    std::sort(steps_.begin(), steps_.begin() + count_,
              [](const Step& a, const Step& b) { return a.stride > b.stride; });
    for (int i = count_; i-- > 0;) {
      const Step& step = steps_[static_cast<std::size_t>(i)];
      lowest_[static_cast<std::size_t>(i)] = lowest_[static_cast<std::size_t>(i) + 1] + step.lowest();
      highest_[static_cast<std::size_t>(i)] = highest_[static_cast<std::size_t>(i) + 1] + step.highest();
    }
  }

  bool finds(int64_t distance) { return finds(0, distance); }

 private:
  static constexpr std::size_t most_steps = 2 * Bytes::max_rank;
  static constexpr int most_visits = 1 << 16;

  /// Merges steps of the same stride. Views with equal strides then need little search.
  void add(const Bytes& bytes, int64_t sign) {
    for (int i = 0; i < bytes.rank; ++i) {
      const int64_t times = bytes.sizes[static_cast<std::size_t>(i)] - 1;
      const int64_t stride = sign * bytes.strides[static_cast<std::size_t>(i)];
      if (times == 0 || stride == 0) continue;
      Step step{stride > 0 ? stride : -stride, stride > 0 ? 0 : -times, stride > 0 ? times : 0};
      const auto end = steps_.begin() + count_;
      const auto same = std::find_if(steps_.begin(), end, [&](const Step& s) { return s.stride == step.stride; });
      if (same == end) {
        steps_[static_cast<std::size_t>(count_++)] = step;
      } else {
        same->least += step.least;
        same->most += step.most;
      }
    }
  }

  static int64_t floor_divide(int64_t number, int64_t divisor) {
    return number / divisor - static_cast<int64_t>(number % divisor < 0);
  }

  /// Returns whether multiples of the steps from index `i` on, which have the smaller strides, can sum to the distance.
  bool finds(int i, int64_t distance) {
    const auto at = static_cast<std::size_t>(i);
    if (distance < lowest_[at] || distance > highest_[at]) return false;
    if (i == count_ || distance == 0) return true;
    if (++visits_ > most_visits) return true;
    const Step& step = steps_[at];
    const int64_t least = -floor_divide(highest_[at + 1] - distance, step.stride);
    const int64_t most = floor_divide(distance - lowest_[at + 1], step.stride);
    for (int64_t times = std::max(least, step.least); times <= std::min(most, step.most); ++times) {
      if (finds(i + 1, distance - times * step.stride)) return true;
    }
    return false;
  }

  std::array<Step, most_steps> steps_ = {};
  int count_ = 0;
  std::array<int64_t, most_steps + 1> lowest_ = {};  ///< of the sums of the steps from each index on
  std::array<int64_t, most_steps + 1> highest_ = {};
  int visits_ = 0;
};

}  // namespace

bool overlap(const Bytes& one, const Bytes& other) {
  const bool may_overlap =
      one.begin < one.end && other.begin < other.end && one.begin < other.end && other.begin < one.end;
  return may_overlap && Search(one, other).finds(other.first - one.first);
}

void ArgumentMemory::add_result(std::string_view who, const TensorView& view, std::string_view as) {
  const Bytes written = Bytes::of(view);
  for (const Argument& argument : arguments_) {
    if (!overlap(written, argument.bytes)) continue;
    refuse(who, "memory of its own", fmt::format("elements that {} has too", argument.who),
           "write into another tensor");
  }
  arguments_.push_back({as, written});
}

}  // namespace gdpa::api
