// See overlap.h.
#include "api/overlap.h"

#include <algorithm>
#include <map>

#include "api/message.h"
#include "definition/divide.h"

namespace gdpa::api {
namespace {

/// Searches for a byte that belongs to both views. Such a byte exists if the distance from the first byte of one view
/// to the last byte of the other is a sum of their steps: from the first byte up in the one, from the last byte down in
/// the other.
class Search {
 public:
  /// Steps of the same size become one. Views with equal strides then need little search.
  Search(const Bytes& one, const Bytes& other) {
    std::map<int64_t, int64_t> times_of_step;
    for (const Bytes* bytes : {&one, &other}) {
      for (const auto& [step, last] : bytes->dimensions) times_of_step[step] += last;
    }
    times_of_step.erase(0);
    int64_t reach = 0;
    for (const auto& [size, most] : times_of_step) steps_.push_back({size, most, reach += size * most});
  }

  bool finds(int64_t distance) { return finds(steps_.size(), distance); }

 private:
  static constexpr int most_visits = 1 << 16;

  struct Step {
    int64_t size;
    int64_t most;   ///< times
    int64_t reach;  ///< the largest sum of this step and the smaller ones
  };

  /// Returns whether the `count` smallest steps can sum to the distance.
  bool finds(std::size_t count, int64_t distance) {
    if (distance == 0) return true;
    if (count == 0 || distance < 0 || distance > steps_[count - 1].reach) return false;
    if (++visits_ > most_visits) return true;
    const auto& [size, most, reach] = steps_[count - 1];
    const int64_t reach_of_others = reach - size * most;
    const int64_t least = std::max<int64_t>(0, divide_up(distance - reach_of_others, size));
    for (int64_t times = least; times <= std::min(most, distance / size); ++times) {
      if (finds(count - 1, distance - times * size)) return true;
    }
    return false;
  }

  std::vector<Step> steps_;  ///< from the smallest size up
  int visits_ = 0;
};

}  // namespace

bool overlap(const Bytes& one, const Bytes& other) {
  const bool may_overlap =
      one.begin < one.end && other.begin < other.end && one.begin < other.end && other.begin < one.end;
  return may_overlap && Search(one, other).finds(other.end - 1 - one.begin);
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
