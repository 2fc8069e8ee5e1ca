// The plan of the gradients of tensors on Hopper.
#include <algorithm>
#include <optional>

#include "codegen/gradients.h"
#include "gpu/families/hopper/plans.h"
#include "gpu/kernels/hopper_parameter_gradients.h"

namespace gdpa::gpu {
namespace {

/// The number of elements for which each consumer thread has a sum of its own: the elements that the read of
/// activation::read_with_sums() has in a head, or 0 if these are too many. Rounded up, so that similar calls have the
/// same kernel.
int sum_elements_of(const Call& call) {
  const activation::Function& function = call.expressions.function;
  constexpr int64_t most = 128, unit = 16;
  const std::optional<std::size_t> input = activation::read_with_sums(function, call.problem.wanted.parameters);
  if (!input) return 0;
  const activation::Input& read = function.inputs()[*input];
  int64_t elements = 1;  // an axis of tokens has more elements than a sequence
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    if (activation::dependence_of(read.indices[axis], function.inputs()) == activation::Dependence::none) continue;
    elements = std::min<int64_t>(elements * call.params.parameters[read.tensor].sizes[axis], most + 1);
  }
  return elements <= most ? static_cast<int>(divide_up(elements, unit) * unit) : 0;
}

/// A tile of the kernel for the gradients of tensors.
struct ParameterTile {
  int queries;
  int keys;
  int query_stages;
  int stages;
};

constexpr ParameterTile parameter_tiles[] = {
    {128, 64, 2, 4}, {128, 64, 2, 2}, {128, 64, 1, 2}, {128, 32, 1, 2}, {64, 64, 1, 2}, {64, 32, 1, 2},
};

int parameter_shared_bytes(const HopperParameterGradients& kernel) {
  constexpr int block_columns = 64, queue_and_barriers = 3072;
  const int columns = round_up(kernel.head_dim, block_columns) + round_up(kernel.head_dim_v, block_columns);
  const int rows = kernel.query_stages * kernel.tile_queries + kernel.stages * kernel.tile_keys;
  const int sums = kernel.warps * 32 * kernel.sum_elements * static_cast<int>(sizeof(float));
  return rows * columns * bytes_of(kernel.element) + kernel.warps * warp_terms_bytes(kernel.tile_keys) + sums +
         queue_and_barriers;
}

/// Chooses the first tile that fits in shared memory. Each consumer thread has sums of its own there.
void choose_tiles(HopperParameterGradients& kernel) {
  for (const ParameterTile& tile : parameter_tiles) {
    kernel.tile_queries = tile.queries;
    kernel.tile_keys = tile.keys;
    kernel.warps = tile.queries / 16;
    kernel.stages = tile.stages;
    kernel.query_stages = tile.query_stages;
    if (parameter_shared_bytes(kernel) <= hopper_shared_kilobytes * 1024) return;
  }
}

}  // namespace

void add_hopper_parameter_gradients(const Call& call, const ParameterGradientsForm& form, GpuPlan& plan) {
  const Problem& problem = call.problem;
  const Side queries = queries_of(problem), keys = keys_of(problem);
  HopperParameterGradients kernel{attention_kernel_for(call), form};
  kernel.sum_elements = sum_elements_of(call);
  choose_tiles(kernel);
  choose_mask(call, false, kernel, plan);
  const bool keys_stay = keys.mean_length() <= int64_t{kernel.stages} * kernel.tile_keys;
  const bool has_one_tile = queries.form != Form::jagged && queries.mean_length() <= kernel.tile_queries;
  // The sums would differ from run to run with a dynamic order.
  pipeline::TileDistribution tiles;
  tiles.order = keys_stay || has_one_tile ? pipeline::TileOrder::contiguous : pipeline::TileOrder::strided;
  const int64_t most_tiles = problem.heads_q * queries.most_tiles(kernel.tile_queries, problem.batch);
  const int64_t ctas = std::min<int64_t>(most_tiles, call.gpu.multiprocessors);
  plan.add_products(launch(kernel, ctas, tiles), kernel);
}

}  // namespace gdpa::gpu
