// The way of a call through the CUDA backend: plan, find the kernels, lay out the workspace, launch.
#include "cuda/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cuda/driver.h"
#include "cuda/kernels.h"
#include "cuda/source.h"
#include "cuda/tensor_maps.h"
#include "gdpa/error.h"
#include "plan/gpu_plan.h"
#include "plan/work.h"
#include "portable/arguments.cuh"

namespace gdpa::cuda {
namespace {

constexpr int64_t copy_bytes = 16;  // what kernels move at once where every row begins at a multiple of it

bool is_aligned(const Operand& operand, int64_t element_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(operand.data);
  const int64_t per_copy = copy_bytes / element_bytes;
  return address % copy_bytes == 0 && operand.batch_stride % per_copy == 0 && operand.row_stride % per_copy == 0 &&
         operand.head_stride % per_copy == 0;
}

/// Every operand that the kernels touch; those that a direction does not use have a null address and strides of 0.
bool is_aligned(const Problem& problem, const Params& params) {
  const int64_t bytes = size_in_bytes(problem.dtype);
  return is_aligned(params.query, bytes) && is_aligned(params.key, bytes) && is_aligned(params.value, bytes) &&
         is_aligned(params.output, bytes) && is_aligned(params.grad_output, bytes) &&
         is_aligned(params.grad_query, bytes) && is_aligned(params.grad_key, bytes) &&
         is_aligned(params.grad_value, bytes);
}

/// The fast forms of functions are made for 16-bit operands; fp32 promises more than they give.
Accuracy accuracy_of(const Problem& problem) {
  return problem.dtype == DType::float32 ? Accuracy::exact : problem.accuracy;
}

plan::GpuPlan plan_of(const Problem& problem, const Params& params) {
  return plan::gpu_plan(problem, device_properties(problem.device.index), is_aligned(problem, params),
                        problem.allow_tf32 ? plan::Float32Products::one : plan::Float32Products::three,
                        tensor_maps(problem, params));
}

/// Device memory for the sums: the caller's, or the stream's own for as long as the call's kernels run.
class Memory {
 public:
  Memory(const Workspace& given, int64_t bytes, Stream stream) : stream_(stream) {
    if (bytes == 0) return;
    if (given.data == nullptr) {
      check(Driver::get().allocate_async(&owned_, static_cast<std::size_t>(bytes), stream),
            "allocating the workspace of backward (Plan.workspace_bytes)");
      address_ = owned_;
      return;
    }
    if (given.bytes < bytes) {
      throw Error(ErrorKind::value, fmt::format("workspace: expected {} bytes, got {}; ask explain() for "
                                                "workspace_bytes",
                                                bytes, given.bytes));
    }
    address_ = reinterpret_cast<DevicePointer>(given.data);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (owned_ != 0) Driver::get().free_async(owned_, stream_);
  }

  DevicePointer address() const { return address_; }
  void* at(int64_t offset) const { return reinterpret_cast<void*>(address_ + static_cast<DevicePointer>(offset)); }

 private:
  Stream stream_;
  DevicePointer owned_ = 0;
  DevicePointer address_ = 0;
};

/// The cumulative lengths, copied to the host: for counting work when a plan is asked for, never for a call.
class HostLengths {
 public:
  HostLengths(const Problem& problem, const Params& params) : params_(params) {
    copy(params_.queries, queries_, problem.batch);
    copy(params_.keys, keys_, problem.batch);
  }
  const Params& params() const { return params_; }

 private:
  static void copy(Sequences& side, std::vector<std::byte>& host, int64_t batch) {
    if (side.cumulative == nullptr) return;
    host.resize(static_cast<std::size_t>((batch + 1) * (side.cumulative_is_int64 ? 8 : 4)));
    check(Driver::get().copy_to_host(host.data(), reinterpret_cast<DevicePointer>(side.cumulative), host.size()),
          "reading the cumulative lengths");
    side.cumulative = host.data();
  }

  Params params_;
  std::vector<std::byte> queries_;
  std::vector<std::byte> keys_;
};

/// One call on its way to the device.
class Call {
 public:
  Call(const Problem& problem, const Params& params, const activation::Function& function, Stream stream)
      : problem_(problem), params_(params), function_(function), stream_(stream), plan_(plan_of(problem, params)) {}

  void run(const Workspace& workspace) {
    const plan::GpuWorkspace& needed = plan_.workspace;
    const Memory memory(workspace, needed.bytes, stream_);
    if (needed.zeroed_bytes > 0) {
      check(Driver::get().fill_async(memory.address(), 0, static_cast<std::size_t>(needed.zeroed_bytes), stream_),
            "clearing the workspace");
    }
    portable::Arguments arguments{};
    arguments.params = params_;
    arguments.packed_rows_q = problem_.rows_q;
    arguments.packed_rows_k = problem_.rows_k;
    arguments.parts = plan_.parts;
    if (needed.grad_query >= 0) {
      arguments.grad_query_sum = sums(memory.at(needed.grad_query), problem_.query_form, params_.queries.length,
                                      problem_.heads_q, problem_.head_dim);
    }
    if (needed.grad_key >= 0) {
      arguments.grad_key_sum =
          sums(memory.at(needed.grad_key), problem_.key_form, params_.keys.length, problem_.heads_k, problem_.head_dim);
      arguments.grad_value_sum = sums(memory.at(needed.grad_value), problem_.key_form, params_.keys.length,
                                      problem_.heads_k, problem_.head_dim_v);
    }
    for (const plan::GpuStep& step : plan_.steps) {
      if (step.kernel.family == plan::KernelFamily::hopper) {
        hopper::ForwardArguments mapped = map_forward(problem_, arguments, step.kernel);
        launch(step, &mapped);
      } else {
        launch(step, &arguments);
      }
    }
    if (needed.grad_query >= 0) {
      reduce(arguments.grad_query_sum, problem_.query_form, problem_.rows_q, problem_.heads_q, problem_.head_dim,
             params_.grad_query);
    }
    if (needed.grad_key >= 0) {
      reduce(arguments.grad_key_sum, problem_.key_form, problem_.rows_k, problem_.heads_k, problem_.head_dim,
             params_.grad_key);
      reduce(arguments.grad_value_sum, problem_.key_form, problem_.rows_k, problem_.heads_k, problem_.head_dim_v,
             params_.grad_value);
    }
  }

 private:
  /// Contiguous fp32 sums: (rows, heads, padded columns), behind each other for dense entries and for parts.
  static Operand sums(void* data, Form form, int64_t length, int64_t heads, int64_t columns) {
    Operand operand;
    operand.data = data;
    operand.head_stride = plan::padded_columns(columns);
    operand.row_stride = heads * operand.head_stride;
    operand.batch_stride = form == Form::jagged ? 0 : length * operand.row_stride;
    return operand;
  }

  void reduce(const Operand& from, Form form, int64_t rows, int64_t heads, int64_t columns, const Operand& to) {
    portable::ReduceArguments arguments{};
    arguments.sums = static_cast<const float*>(from.data);
    arguments.slabs = form == Form::shared ? plan_.parts : 1;
    arguments.slab_stride = rows * from.row_stride;
    arguments.rows = rows;
    arguments.rows_in_batch = form == Form::dense ? std::max<int64_t>(1, rows / std::max<int64_t>(1, problem_.batch))
                                                  : std::max<int64_t>(1, rows);
    arguments.heads = heads;
    arguments.output = to;
    launch(plan::reduction(problem_, device_properties(problem_.device.index), is_aligned(problem_, params_), columns,
                           rows * heads),
           &arguments);
  }

  void launch(const plan::GpuStep& step, void* arguments) {
    const LoadedKernel& kernel =
        find_kernel(step.kernel, function_, accuracy_of(problem_), problem_.device.index, stream_);
    // More work than a grid may have CTAs is taken by the same CTAs, one after the other.
    constexpr int64_t most_ctas = 0x7fffffff;
    const auto grid = static_cast<unsigned>(std::clamp<int64_t>(step.work, 1, most_ctas));
    void* parameters[] = {arguments};
    check(Driver::get().launch(kernel.handle, grid, 1, 1, kernel.threads, 1, 1, kernel.shared_bytes, stream_,
                               parameters, nullptr),
          "launching a kernel");
  }

  const Problem& problem_;
  const Params& params_;
  const activation::Function& function_;
  Stream stream_;
  plan::GpuPlan plan_;
};

}  // namespace

void run(const Problem& problem, const Params& params, const activation::Function& function, void* stream,
         const Workspace& workspace) {
  const CurrentDevice current(problem.device.index);
  Call(problem, params, function, static_cast<Stream>(stream)).run(workspace);
}

int64_t workspace_bytes(const Problem& problem, const Params& params) {
  return plan_of(problem, params).workspace.bytes;
}

Plan explain(const Problem& problem, const Params& params, const activation::Function& function) {
  const CurrentDevice current(problem.device.index);
  const plan::GpuPlan chosen = plan_of(problem, params);
  const plan::GpuStep& first = chosen.steps.front();
  const LoadedKernel& kernel = find_kernel(first.kernel, function, accuracy_of(problem), problem.device.index, nullptr);
  Plan plan;
  plan.direction = problem.direction;
  plan.kernel = describe(first.kernel);
  plan.schedule = "tiles found on the device";
  plan.reason = chosen.reason;
  plan.tile_queries = first.kernel.tile_queries;
  plan.tile_keys = first.kernel.tile_keys;
  plan.threads = static_cast<int>(kernel.threads);
  plan.units = first.work;
  plan.workspace_bytes = chosen.workspace.bytes;
  plan.deterministic = chosen.deterministic;
  plan.registers = kernel.registers;
  plan.shared_bytes = kernel.shared_bytes;
  const HostLengths host(problem, params);
  plan.flops = plan::flops_of(problem, host.params());
  plan.bytes = plan::traffic_of(problem, host.params());
  return plan;
}

}  // namespace gdpa::cuda
