// See hopper_plan.h.
#include "plan/hopper_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace gdpa::plan {
namespace {

int widest(const KernelSpec& kernel) { return std::max(kernel.head_dim, kernel.head_dim_v); }

}  // namespace

std::string why_not_hopper(const Problem& problem, const Gpu& gpu, const KernelSpec& kernel, TensorMaps tensor_maps) {
  constexpr int most_columns = 128;
  constexpr int shared_kilobytes = 227;
  if (gpu.capability != 90) {
    return fmt::format("it needs compute capability 9.0, not {}.{}", gpu.capability / 10, gpu.capability % 10);
  }
  if (gpu.shared_bytes < shared_kilobytes * 1024) {
    return fmt::format("it needs {} KB of shared memory, not {}", shared_kilobytes, gpu.shared_bytes / 1024);
  }
  if (problem.dtype == DType::float32) return "it takes bfloat16 and float16";
  if (widest(kernel) > most_columns) return fmt::format("it takes head dims up to {}", most_columns);
  if (!kernel.aligned) return "some row does not begin at a multiple of 16 bytes";
  if (tensor_maps == TensorMaps::unavailable) return "the copy engine does not reach an operand of these strides";
  return {};
}

void choose_hopper_tiles(KernelSpec& kernel, int64_t mean_keys) {
  const bool is_narrow = widest(kernel) <= 64;
  const bool are_few = mean_keys <= (is_narrow ? 512 : 256);
  kernel.family = KernelFamily::hopper;
  kernel.tile_queries = 128;
  kernel.tile_keys = is_narrow && !are_few ? 192 : 128;
  kernel.warps = 8;  // two warpgroups
  kernel.stages = !are_few ? 3 : is_narrow ? 4 : 2;
  kernel.query_stages = are_few ? 3 : 1;
}

}  // namespace gdpa::plan
