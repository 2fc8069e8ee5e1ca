// The GPU plan; see gpu_plan.h. The tiles come from measurements that docs/kernels/portable.md keeps.
#include "plan/gpu_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace gdpa::plan {
namespace {

constexpr int64_t column_group = 16;  // fp32 sums pad a row of a head to this many columns, as kernels/ does
constexpr int64_t workspace_alignment = 256;

int64_t divide_up(int64_t count, int64_t divisor) { return (count + divisor - 1) / divisor; }

GpuElement element_of(DType dtype, Float32Products products) {
  if (dtype == DType::bfloat16) return GpuElement::bfloat16;
  if (dtype == DType::float16) return GpuElement::float16;
  return products == Float32Products::one ? GpuElement::tensor_float32 : GpuElement::float32;
}

/// One side of the problem: how its rows become tiles.
struct Side {
  Form form;
  int64_t rows;  ///< of the operand
  int64_t batch;

  int64_t length() const { return form == Form::dense && batch > 0 ? rows / batch : rows; }

  /// The most tiles that one head can have over all batch entries, and one for rows that no entry has where the side
  /// is jagged; over `parts` of the batch where it is shared.
  int64_t most_tiles(int64_t tile, int64_t parts) const {
    if (form == Form::jagged) return rows / tile + batch + 1;
    return (form == Form::shared ? parts : batch) * divide_up(length(), tile);
  }
};

/// Parts into which the batch is cut, so that the CTAs that own a shared operand fill the device.
int64_t parts_for(const Side& side, int64_t heads, int64_t tile, const Gpu& gpu, int ctas) {
  const int64_t owners = std::max<int64_t>(1, heads * divide_up(side.length(), tile));
  const int64_t wanted = divide_up(int64_t{2} * gpu.multiprocessors * ctas, owners);
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, side.batch));
}

class Planner {
 public:
  Planner(const Problem& problem, const Gpu& gpu, bool aligned, Float32Products products, TensorMaps tensor_maps)
      : problem_(problem),
        gpu_(gpu),
        tensor_maps_(tensor_maps),
        queries_{problem.query_form, problem.rows_q, problem.batch},
        keys_{problem.key_form, problem.rows_k, problem.batch} {
    base_.element = element_of(problem.dtype, products);
    base_.head_dim = static_cast<int>(problem.head_dim);
    base_.head_dim_v = static_cast<int>(problem.head_dim_v);
    base_.aligned = aligned;
  }

  GpuPlan forward() {
    KernelSpec kernel = base_;
    kernel.kind = KernelKind::forward;
    const std::string obstacle = hopper_obstacle();
    if (obstacle.empty()) return hopper_forward(kernel);
    plan_.reason =
        fmt::format("one CTA owns a tile of queries and the keys pass by; not the Hopper kernel: {}", obstacle);
    choose_forward_tiles(kernel);
    plan_.steps.push_back({kernel, problem_.heads_q * queries_.most_tiles(kernel.tile_queries, problem_.batch)});
    return plan_;
  }

  GpuPlan backward() {
    const bool keys_shared = keys_.form == Form::shared && problem_.batch != 1;
    const bool queries_shared = queries_.form == Form::shared && problem_.batch != 1;
    // Additions of many batch entries to the few rows of a shared query would wait for each other.
    const bool own_query_kernel = problem_.deterministic || queries_shared;
    plan_.deterministic = own_query_kernel;
    plan_.reason = own_query_kernel ? "dQ has a kernel of its own, which sums in one order"
                                    : "one CTA owns a tile of keys and adds to sums of dQ";

    KernelSpec kernel = base_;
    kernel.kind = KernelKind::backward;
    choose_backward_tiles(kernel);
    kernel.reduce_grad_query = !own_query_kernel;
    kernel.keys_shared = keys_shared;
    KernelSpec query_kernel = base_;
    query_kernel.kind = KernelKind::backward_query;
    choose_backward_query_tiles(query_kernel);
    query_kernel.queries_shared = queries_shared;
    if (keys_shared) plan_.parts = parts_for(keys_, problem_.heads_k, kernel.tile_keys, gpu_, kernel.ctas);
    if (queries_shared) {
      plan_.parts = parts_for(queries_, problem_.heads_q, query_kernel.tile_queries, gpu_, query_kernel.ctas);
    }

    lay_out_workspace(kernel.reduce_grad_query, queries_shared, keys_shared);
    plan_.steps.push_back({kernel, problem_.heads_k * keys_.most_tiles(kernel.tile_keys, plan_.parts)});
    if (own_query_kernel) {
      plan_.steps.push_back(
          {query_kernel, problem_.heads_q * queries_.most_tiles(query_kernel.tile_queries, plan_.parts)});
    }
    return plan_;
  }

 private:
  /// Why the Hopper forward does not take the problem, or an empty string.
  std::string hopper_obstacle() const {
    constexpr int64_t most_columns = 128;
    if (gpu_.capability != 90)
      return fmt::format("it needs compute capability 9.0, not {}.{}", gpu_.capability / 10, gpu_.capability % 10);
    if (is_32_bit()) return "it takes bfloat16 and float16";
    if (std::max(problem_.head_dim, problem_.head_dim_v) > most_columns) {
      return fmt::format("it takes head dims up to {}", most_columns);
    }
    if (!base_.aligned) return "some row does not begin at a multiple of 16 bytes";
    if (tensor_maps_ == TensorMaps::unavailable) return "the copy engine does not reach an operand of these strides";
    return {};
  }

  GpuPlan hopper_forward(KernelSpec kernel) {
    constexpr int warps = 8;  // two warpgroups
    const int64_t mean_keys = keys_.form == Form::shared ? keys_.rows : keys_.rows / std::max<int64_t>(1, keys_.batch);
    kernel.family = KernelFamily::hopper;
    const bool is_narrow = std::max(problem_.head_dim, problem_.head_dim_v) <= 64;
    const bool is_short = mean_keys <= (is_narrow ? 512 : 256);
    set_tiles(kernel, 128, is_narrow && !is_short ? 192 : 128, warps, is_short ? (is_narrow ? 4 : 2) : 3);
    kernel.query_stages = is_short ? 3 : 1;
    plan_.in_runs = mean_keys <= int64_t{kernel.stages} * kernel.tile_keys;
    plan_.reason = plan_.in_runs
                       ? "the keys of a sequence mostly fit shared memory: they stay there while queries pass by"
                       : "one CTA on each multiprocessor takes tiles of queries and the keys pass by";
    const int64_t tiles = problem_.heads_q * queries_.most_tiles(kernel.tile_queries, problem_.batch);
    plan_.steps.push_back({kernel, std::min<int64_t>(tiles, gpu_.multiprocessors)});
    return plan_;
  }

  bool is_wide() const { return std::max(problem_.head_dim, problem_.head_dim_v) > 128; }
  bool is_blackwell() const { return gpu_.capability >= 100; }  // the compiler spills the larger tiles for it
  bool is_32_bit() const { return problem_.dtype == DType::float32; }

  static void set_tiles(KernelSpec& kernel, int queries, int keys, int warps, int stages, int ctas = 1) {
    kernel.tile_queries = queries;
    kernel.tile_keys = keys;
    kernel.warps = warps;
    kernel.stages = stages;
    kernel.ctas = ctas;
  }

  void choose_forward_tiles(KernelSpec& kernel) const {
    if (is_32_bit()) return is_wide() ? set_tiles(kernel, 64, 16, 4, 2) : set_tiles(kernel, 128, 32, 8, 2);
    if (is_wide()) return set_tiles(kernel, 128, 64, 8, 2);
    set_tiles(kernel, 128, is_blackwell() ? 32 : 64, 4, 2, 2);
  }

  void choose_backward_tiles(KernelSpec& kernel) const {
    const bool has_narrow_rows = std::max(problem_.head_dim, problem_.head_dim_v) <= 96;
    kernel.column_warps = 2;
    if (is_32_bit()) return set_tiles(kernel, 32, 64, 4, is_wide() ? 1 : 2);
    if (is_wide()) return set_tiles(kernel, 64, 64, 4, 2);
    if (!has_narrow_rows && problem_.head_dim == problem_.head_dim_v) {
      return set_tiles(kernel, is_blackwell() ? 32 : 64, 128, 4, 2);
    }
    kernel.column_warps = 1;
    set_tiles(kernel, 64, 128, 8, 2);
  }

  void choose_backward_query_tiles(KernelSpec& kernel) const {
    if (is_32_bit()) return set_tiles(kernel, 64, 16, 4, is_wide() ? 1 : 2);
    set_tiles(kernel, 128, is_wide() ? 32 : 64, 8, 2);
  }

  void lay_out_workspace(bool query_sum, bool query_slabs, bool key_slabs) {
    GpuWorkspace& workspace = plan_.workspace;
    const auto take = [&](int64_t rows, int64_t heads, int64_t columns) {
      const int64_t at = workspace.bytes;
      const int64_t bytes = rows * heads * padded_columns(columns) * static_cast<int64_t>(sizeof(float));
      workspace.bytes += divide_up(bytes, workspace_alignment) * workspace_alignment;
      return at;
    };
    if (query_sum) {
      workspace.grad_query = take(problem_.rows_q, problem_.heads_q, problem_.head_dim);
      workspace.zeroed_bytes = workspace.bytes;
    }
    if (query_slabs) workspace.grad_query = take(plan_.parts * problem_.rows_q, problem_.heads_q, problem_.head_dim);
    if (key_slabs) {
      workspace.grad_key = take(plan_.parts * problem_.rows_k, problem_.heads_k, problem_.head_dim);
      workspace.grad_value = take(plan_.parts * problem_.rows_k, problem_.heads_k, problem_.head_dim_v);
    }
  }

  const Problem& problem_;
  const Gpu& gpu_;
  TensorMaps tensor_maps_;
  Side queries_;
  Side keys_;
  KernelSpec base_;
  GpuPlan plan_;
};

}  // namespace

int64_t padded_columns(int64_t columns) { return divide_up(columns, column_group) * column_group; }

GpuStep reduction(const Problem& problem, const Gpu& gpu, bool aligned, int64_t columns, int64_t rows) {
  constexpr int64_t threads = 256, ctas_per_multiprocessor = 32;
  KernelSpec kernel;
  kernel.kind = KernelKind::reduce;
  kernel.element = element_of(problem.dtype, Float32Products::three);
  kernel.head_dim = static_cast<int>(columns);
  kernel.aligned = aligned;
  const int64_t pieces = rows * padded_columns(columns) / column_group;
  return {kernel, std::min(divide_up(pieces, threads), ctas_per_multiprocessor * gpu.multiprocessors)};
}

GpuPlan gpu_plan(const Problem& problem, const Gpu& gpu, bool aligned, Float32Products products,
                 TensorMaps tensor_maps) {
  Planner planner(problem, gpu, aligned, products, tensor_maps);
  return problem.direction == Direction::forward ? planner.forward() : planner.backward();
}

}  // namespace gdpa::plan
