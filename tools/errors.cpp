// See errors.h.
#include "errors.h"

#include <algorithm>
#include <cmath>

namespace gdpa::tool {

double relative_error(const std::vector<double>& got, const std::vector<double>& expected, double squares) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  norm = std::max(norm, squares);
  return std::fabs(norm > 0 ? std::sqrt(error / norm) : std::sqrt(error));  // NaN has a sign too
}

double promised_error(DType dtype, bool allow_tf32) {
  switch (dtype) {
    case DType::float64:
      return 1e-13;
    case DType::float32:
      return allow_tf32 ? 6e-4 : 2e-6;
    case DType::float16:
      return 6e-4;
    default:
      return 3e-3;
  }
}

}  // namespace gdpa::tool
