// See backend.h. A call is planned, its kernels are found, its workspace is reserved, and its launches run in order.
#include "gpu/backend.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <list>
#include <utility>

#include "gdpa/error.h"
#include "gpu/call.h"
#include "gpu/driver.h"
#include "gpu/launch.h"
#include "gpu/loaded_kernels.h"
#include "gpu/memory.h"
#include "gpu/representatives.h"
#include "gpu/target.h"
#include "gpu/tensor_maps.h"
#include "plan/work.h"

namespace gdpa::gpu {
namespace {

Call call_of(const Problem& problem, const Params& params, const Expressions& expressions, const Gpu& gpu) {
  return {problem, params, expressions, gpu, is_aligned(problem, params), has_tensor_maps(problem, params)};
}

void launch_kernel(const LoadedKernel& kernel, const Launch& launch, void* arguments, Stream stream) {
  // More work than a grid may have CTAs is taken by the same CTAs, one after the other.
  constexpr int64_t most_ctas = 0x7fffffff;
  const auto grid = static_cast<unsigned>(std::clamp<int64_t>(launch.ctas(), 1, most_ctas));
  void* parameters[] = {arguments};
  const Driver& driver = Driver::get();
  if (launch.overlaps_previous() && driver.launch_with_attributes != nullptr) {
    const LaunchAttribute overlaps;
    LaunchConfig config;
    config.grid[0] = grid;
    config.block[0] = kernel.threads;
    config.shared_bytes = kernel.shared_bytes;
    config.stream = stream;
    config.attributes = &overlaps;
    config.attribute_count = 1;
    check(driver.launch_with_attributes(&config, kernel.handle, parameters, nullptr), "launching a kernel");
    return;
  }
  check(
      driver.launch(kernel.handle, grid, 1, 1, kernel.threads, 1, 1, kernel.shared_bytes, stream, parameters, nullptr),
      "launching a kernel");
}

}  // namespace

void run_plan(const GpuPlan& plan, const Problem& problem, const Params& params, const Expressions& expressions,
              Stream stream, const Workspace& workspace, const char* bytes_function) {
  const KernelsOfCall kernels = find_kernels(plan.launches, expressions, problem.device.index, stream);
  const Memory memory(workspace, plan.workspace.bytes(), stream, bytes_function);
  const CommonArguments common = plan.common_arguments(problem, params, memory.data());
  const BoundCall call{problem, params, common, memory.data()};
  alignas(Launch::argument_alignment) std::array<std::byte, Launch::most_argument_bytes> arguments;
  for (std::size_t i = 0; i < plan.launches.size(); ++i) {
    const Launch& launch = plan.launches[i];
    if (launch.clears()) {
      const Cleared cleared = launch.cleared(call);
      check(Driver::get().fill_async(reinterpret_cast<DevicePointer>(cleared.data), 0,
                                     static_cast<std::size_t>(cleared.bytes), stream),
            "clearing device memory");
      continue;
    }
    launch.fill(call, arguments.data());
    launch_kernel(kernels[i], launch, arguments.data(), stream);
  }
}

namespace {

/// The lengths on the host: for counting work when a plan is asked for, never for a call.
class HostLengths {
 public:
  HostLengths(const Problem& problem, const Params& params) : params_(params) {
    if (problem.device.kind == DeviceKind::cpu) return;
    const CurrentDevice current(problem.device.index);
    for (Sequences* const side : {&params_.queries, &params_.keys}) {
      const int64_t sequences = side->map.data == nullptr ? problem.batch : side->sequences;
      copy(side->begins, sequences);
      copy(side->ends, sequences);  // with pages, the lengths
      copy(side->map, problem.batch);
    }
  }
  const Params& params() const { return params_; }

 private:
  void copy(Integers& numbers, int64_t count) {
    if (numbers.data == nullptr || count == 0) return;
    const auto extent = static_cast<std::size_t>((count - 1) * numbers.stride + 1);
    std::vector<std::byte>& host = host_.emplace_back(extent * (numbers.is_int64 ? 8 : 4));
    check(Driver::get().copy_to_host(host.data(), reinterpret_cast<DevicePointer>(numbers.data), host.size()),
          "reading the lengths");
    numbers.data = host.data();
  }

  Params params_;
  std::list<std::vector<std::byte>> host_;
};

}  // namespace

void run(const Problem& problem, const Params& params, const Expressions& expressions, void* stream,
         const Workspace& workspace) {
  const CurrentDevice current(problem.device.index);
  const GpuPlan plan = plan_call(call_of(problem, params, expressions, target_of(problem.device.index).gpu));
  run_plan(plan, problem, params, expressions, static_cast<Stream>(stream), workspace);
}

int64_t workspace_bytes(const Problem& problem, const Params& params, const Expressions& expressions) {
  return plan_call(call_of(problem, params, expressions, target_of(problem.device.index).gpu)).workspace.bytes();
}

MaskPreparation::MaskPreparation(const std::vector<CheckedCall>& calls, const Expressions& expressions)
    : expressions_(expressions) {
  const CheckedCall& first = calls.front();
  tiles_.call = plan::ListedCall::of(first.problem, expressions.mask->identity());
  const Gpu gpu = target_of(first.problem.device.index).gpu;
  for (const CheckedCall& call : calls) {
    const Expressions of_call = expressions_of(call);
    const Call planned = call_of(call.problem, call.params, of_call, gpu);
    GpuPlan lists = plan_prepared_lists(planned, plan_call(planned), tiles_);
    if (!lists.launches.empty()) rounds_.push_back({call, std::move(lists)});
  }
  // The rounds run one after the other, and locate the sequences in the same memory.
  const int64_t bytes_of_lists = tiles_.bytes;
  for (Round& round : rounds_) {
    const Expressions of_call = expressions_of(round.call);
    plan_preparation(call_of(round.call.problem, round.call.params, of_call, gpu), bytes_of_lists, round.plan);
    tiles_.bytes = std::max(tiles_.bytes, round.plan.workspace.bytes());
  }
}

void MaskPreparation::run(void* data, void* stream) const {
  const CurrentDevice current(rounds_.front().call.problem.device.index);
  for (const Round& round : rounds_) {
    const auto& [problem, params, function] = round.call;
    run_plan(round.plan, problem, params, expressions_of(round.call), static_cast<Stream>(stream),
             {data, tiles_.bytes});
  }
}

std::vector<KernelAhead> kernels_ahead(const Problem& problem, const Params& params, const Expressions& expressions,
                                       const Gpu& gpu, Lengths lengths) {
  const Call call = call_of(problem, params, expressions, gpu);
  std::vector<KernelAhead> kernels;
  const auto add = [&](const GpuPlan& plan, bool is_of_call) {
    for (const Launch& launch : plan.launches) {
      if (launch.clears()) continue;
      const auto is_same = [&](const KernelAhead& known) { return known.kernel == launch.kernel(); };
      if (std::ranges::none_of(kernels, is_same)) kernels.push_back({launch.kernel(), is_of_call ? launch.ctas() : 0});
    }
  };
  add(plan_call(call), true);
  if (lengths == Lengths::these) return kernels;
  Problem any_lengths = problem;
  any_lengths.prepared = nullptr;  // the lists of other lengths
  const auto add_kernels_of = [&](const Problem& other, const Params& tensors) {
    try {
      add(plan_call({other, tensors, expressions, gpu, call.aligned, call.has_tensor_maps}), false);
    } catch (const Error&) {
      // The GPU has too little shared memory for such lengths. A call with them throws this error itself.
    }
  };
  visit_representatives(any_lengths, params, expressions.function, gpu, add_kernels_of);
  return kernels;
}

std::vector<CompiledKernel> compile(const Problem& problem, const Params& params, const Expressions& expressions,
                                    const CompileOptions& options) {
  const bool is_for_device = options.architecture.empty();
  const Target target = is_for_device ? target_of(problem.device.index) : target_of(options.architecture);
  std::vector<Kernel> kernels;
  std::vector<int64_t> ctas;
  for (KernelAhead& ahead : kernels_ahead(problem, params, expressions, target.gpu, options.lengths)) {
    kernels.push_back(std::move(ahead.kernel));
    ctas.push_back(ahead.ctas);
  }
  std::vector<CompiledKernel> compiled = compile_ahead(kernels, expressions, target.architecture, options.progress);
  for (std::size_t i = 0; i < compiled.size(); ++i) compiled[i].kernel.ctas = ctas[i];
  if (is_for_device) {
    const CurrentDevice current(problem.device.index);
    load_kernels(kernels, compiled, expressions, problem.device.index);
  }
  return compiled;
}

Plan explain(const Problem& problem, const Params& params, const Expressions& expressions,
             const std::string& architecture) {
  const Target target = architecture.empty() ? target_of(problem.device.index) : target_of(architecture);
  const GpuPlan chosen = plan_call(call_of(problem, params, expressions, target.gpu));
  Plan plan;
  plan.direction = problem.direction;
  plan.schedule = "tiles found on the device";
  plan.reason = chosen.reason;
  plan.tile_queries = chosen.tile_queries;
  plan.tile_keys = chosen.tile_keys;
  plan.workspace_bytes = chosen.workspace.bytes();
  plan.deterministic = chosen.deterministic;
  std::vector<Kernel> kernels;
  for (const Launch& launch : chosen.launches) {
    if (!launch.clears()) kernels.push_back(launch.kernel());
  }
  const std::vector<CompiledKernel> compiled = compile_kernels(kernels, expressions, target.architecture);
  for (std::size_t i = 0, next = 0; i < chosen.launches.size(); ++i) {
    GpuKernel& kernel = plan.kernels.emplace_back();
    if (chosen.launches[i].clears()) {
      kernel.name = "clear memory";
      kernel.architecture = target.architecture;
      continue;
    }
    kernel = compiled[next++].kernel;
    kernel.ctas = chosen.launches[i].ctas();
    if (i != chosen.main_launch) continue;
    plan.kernel = kernel.name;
    plan.units = kernel.ctas;
    plan.threads = kernel.threads;
  }
  const HostLengths host(problem, params);
  plan.flops = plan::flops_of(problem, host.params());
  plan.bytes = plan::traffic_of(problem, host.params());
  return plan;
}

}  // namespace gdpa::gpu
