// Divisions of counts that round up.
#pragma once

#include <cstdint>

namespace gdpa {

constexpr int64_t divide_up(int64_t count, int64_t divisor) { return (count + divisor - 1) / divisor; }

/// Returns the smallest multiple that is not below the count.
constexpr int64_t round_up(int64_t count, int64_t multiple) { return divide_up(count, multiple) * multiple; }

}  // namespace gdpa
