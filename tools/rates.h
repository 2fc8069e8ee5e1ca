// The two rates that bound a computation, and the floor that they make.
#pragma once

#include <algorithm>
#include <string>

#include "gdpa/gdpa.h"

namespace gdpa::tool {

struct Rates {
  double product_flops = 0;  ///< FLOP/s
  double copy_bytes = 0;     ///< bytes/s
  std::string source;        ///< where they come from, in a sentence
};

/// Of the CPU as measured now, once for each type and number of threads; of a GPU those that its clocks and widths
/// allow.
const Rates& rates_of(Device device, DType dtype, int threads);

/// The least time: that of the products, or that of the bytes, each input read once and each output written once.
struct Floor {
  Floor(const Plan& plan, const Rates& rates)
      : product_seconds(plan.flops / rates.product_flops), copy_seconds(plan.bytes / rates.copy_bytes) {}
  double product_seconds;
  double copy_seconds;
  double seconds() const { return std::max(product_seconds, copy_seconds); }
  const char* bound() const { return product_seconds >= copy_seconds ? "products" : "memory"; }
};

}  // namespace gdpa::tool
