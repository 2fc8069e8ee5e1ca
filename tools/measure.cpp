// Measures times with the steady clock.
#include "measure.h"

#include <algorithm>
#include <chrono>

namespace gdpa::tool {

std::vector<double> time_calls(const std::function<void()>& work, double seconds) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  double total = 0;
  do {
    const auto start = Clock::now();
    work();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    total += times.back();
  } while (total < seconds);
  return times;
}

double median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  if (numbers.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(numbers.begin(), middle)) / 2;
}

}  // namespace gdpa::tool
