// The two rates that limit a computation, and the resulting floor.
#pragma once

#include <algorithm>
#include <string>

#include "gdpa/gdpa.h"

namespace gdpa::tool {

struct Rates {
  double product_flops = 0;  ///< FLOP/s
  double copy_bytes = 0;     ///< bytes/s
  std::string source;        ///< the origin of the rates, in a sentence
};

/// Returns the rates of a device. On the CPU they are measured once for each type and number of threads. On a GPU they
/// are the highest rates that its clocks and widths allow.
const Rates& rates_of(Device device, DType dtype, int threads);

/// The least time: the larger of the times for the products and for the bytes, with each input read once and each
/// output written once.
struct Floor {
  Floor(const Plan& plan, const Rates& rates)
      : product_seconds(plan.flops / rates.product_flops), copy_seconds(plan.bytes / rates.copy_bytes) {}
  double product_seconds;
  double copy_seconds;
  double seconds() const { return std::max(product_seconds, copy_seconds); }
  const char* bound() const { return product_seconds >= copy_seconds ? "products" : "memory"; }
};

}  // namespace gdpa::tool
