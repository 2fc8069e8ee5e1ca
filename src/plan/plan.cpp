// Prints the plan of any backend as a few lines of text.
#include "gdpa/plan.h"

#include "fmt/format.h"

namespace gdpa {

std::string to_string(const Plan& plan) {
  std::string text = fmt::format(
      "kernel      {} ({})\n"
      "schedule    {}: {}\n"
      "tile        {} queries x {} keys\n"
      "work        {} units for {} thread{}, {:.4g} GFLOP, at least {:.4g} MB of memory traffic\n"
      "workspace   {:.4g} MiB\n"
      "repeatable  {}\n",
      plan.kernel, plan.direction == Direction::forward ? "forward" : "backward", plan.schedule, plan.reason,
      plan.tile_queries, plan.tile_keys, plan.units, plan.threads, plan.threads == 1 ? "" : "s", plan.flops / 1e9,
      plan.bytes / 1e6, static_cast<double>(plan.workspace_bytes) / (1 << 20),
      plan.deterministic ? "equal bits from run to run" : "the last bits may differ from run to run");
  for (const GpuKernel& kernel : plan.kernels) {
    text += fmt::format("on the GPU  {}: {} registers, {} bytes spilled, {:.1f} KiB shared, {}\n", kernel.name,
                        kernel.registers, kernel.local_bytes, static_cast<double>(kernel.shared_bytes) / 1024,
                        kernel.architecture);
  }
  return text;
}

}  // namespace gdpa
