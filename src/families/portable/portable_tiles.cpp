// See portable_tiles.h.
#include "families/portable/portable_tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "families/planning.h"
#include "gdpa/error.h"

namespace gdpa::families {
namespace {

using plan::FunctionRegisters;
using plan::Gpu;
using plan::GpuElement;
using plan::KernelKind;
using plan::KernelSpec;

/// A tile, and the largest number of registers for its accumulators. With more registers, the compiler spills, or a
/// later tile of the list is faster. The second limit is lower. It applies to functions that need many registers, to
/// rows that are not aligned (their copies need registers), and to Blackwell, for which the compiler schedules
/// differently.
struct Tile {
  int queries;
  int keys;
  int warps;  ///< along the queries; backward: along the keys
  int column_warps;
  int stages;
  int ctas;
  int most_registers;
  int most_registers_with_many;
};

// A kernel gets the first tile that fits. Each list begins with the tiles that were measured on a GPU with 227 KB of
// shared memory. The tiles after them are for 163 KB (A100), for 99 KB (Ada, and the small GPUs of Ampere and
// Blackwell), and for wider rows.
constexpr Tile forward_16_bit[] = {
    {128, 64, 4, 1, 2, 2, 160, 160}, {128, 32, 4, 1, 2, 2, 192, 160}, {128, 64, 8, 1, 2, 1, 192, 160},
    {128, 32, 8, 1, 2, 1, 192, 160}, {64, 32, 4, 1, 2, 1, 192, 160},  {64, 16, 4, 1, 2, 1, 192, 160},
};
constexpr Tile backward_16_bit[] = {
    {64, 128, 8, 1, 2, 1, 164, 132}, {64, 128, 4, 2, 2, 1, 196, 128}, {32, 128, 4, 2, 2, 1, 192, 164},
    {64, 64, 4, 2, 2, 1, 192, 164},  {64, 64, 4, 2, 1, 1, 192, 164},  {32, 64, 4, 2, 2, 1, 192, 164},
    {32, 64, 4, 2, 1, 1, 192, 164},  {32, 32, 2, 2, 1, 1, 192, 164},  {16, 32, 2, 2, 1, 1, 192, 164},
};
constexpr Tile backward_query_16_bit[] = {
    {128, 64, 8, 1, 2, 1, 128, 96}, {128, 32, 8, 1, 2, 1, 160, 128}, {64, 32, 4, 1, 2, 1, 160, 128},
    {64, 32, 4, 2, 2, 1, 160, 128}, {64, 16, 4, 1, 2, 1, 160, 128},  {64, 16, 4, 2, 1, 1, 160, 128},
};
constexpr Tile forward_32_bit[] = {
    {128, 32, 8, 1, 2, 1, 112, 72}, {128, 16, 8, 1, 2, 1, 104, 80}, {64, 32, 4, 2, 2, 1, 112, 64},
    {64, 16, 4, 2, 2, 1, 112, 80},  {64, 16, 4, 2, 1, 1, 112, 80},
};
constexpr Tile backward_32_bit[] = {
    {32, 64, 4, 2, 2, 1, 164, 164}, {32, 64, 4, 2, 1, 1, 164, 164}, {32, 32, 2, 2, 2, 1, 128, 128},
    {32, 32, 2, 2, 1, 1, 128, 128}, {32, 32, 2, 4, 1, 1, 88, 88},   {16, 32, 2, 2, 1, 1, 100, 100},
    {16, 16, 1, 4, 1, 1, 120, 120},
};
constexpr Tile backward_query_32_bit[] = {
    {64, 16, 4, 1, 2, 1, 96, 80},
    {64, 16, 4, 2, 2, 1, 112, 80},
    {64, 16, 4, 2, 1, 1, 112, 80},
    {32, 16, 2, 2, 1, 1, 112, 80},
};

// A warp has all columns of its rows.
constexpr Tile parameter_gradients_16_bit[] = {
    {128, 64, 8, 1, 2, 1, 128, 96}, {128, 32, 8, 1, 2, 1, 160, 128}, {64, 32, 4, 1, 2, 1, 160, 128},
    {64, 16, 4, 1, 2, 1, 160, 128}, {64, 16, 4, 1, 1, 1, 160, 128},
};
constexpr Tile parameter_gradients_32_bit[] = {
    {64, 16, 4, 1, 2, 1, 96, 80},
    {64, 16, 4, 1, 1, 1, 112, 80},
    {32, 16, 2, 1, 1, 1, 112, 80},
    {16, 16, 1, 1, 1, 1, 112, 80},
};

constexpr int row_group = 16;     // rows and columns of one tensor-core product
constexpr int chunk_bytes = 16;   // of a row in shared memory
constexpr int column_group = 16;  // to which head dims are padded

constexpr int registers_of_several_entries = 4;  // for out_scale of the entry, which multiplies P and dS

constexpr int blackwell = 100;

bool is_16_bit(const KernelSpec& kernel) {
  return kernel.element == GpuElement::bfloat16 || kernel.element == GpuElement::float16;
}

std::span<const Tile> tiles_of(const KernelSpec& kernel) {
  switch (kernel.kind) {
    case KernelKind::forward:
      return is_16_bit(kernel) ? std::span<const Tile>(forward_16_bit) : forward_32_bit;
    case KernelKind::backward:
      return is_16_bit(kernel) ? std::span<const Tile>(backward_16_bit) : backward_32_bit;
    case KernelKind::backward_query:
      return is_16_bit(kernel) ? std::span<const Tile>(backward_query_16_bit) : backward_query_32_bit;
    case KernelKind::parameter_gradients:
      return is_16_bit(kernel) ? std::span<const Tile>(parameter_gradients_16_bit) : parameter_gradients_32_bit;
    case KernelKind::reduce:
    case KernelKind::round_parameters:
    case KernelKind::complete_terms:
    case KernelKind::wide_backward:
    case KernelKind::key_schedule:
    case KernelKind::round_grad_query:
    case KernelKind::locate_sequences:
    case KernelKind::group_entries:
    case KernelKind::find_overlap:
    case KernelKind::clear_gaps:
    case KernelKind::check_offsets:
    case KernelKind::check_indices:
    case KernelKind::norm:
    case KernelKind::norm_backward:
    case KernelKind::norm_reduce:
    case KernelKind::locate_lists:
    case KernelKind::list_key_tiles:
    case KernelKind::list_query_tiles:
      break;
  }
  return {};
}

int divide_up(int count, int divisor) { return (count + divisor - 1) / divisor; }

int columns_of_warp(const KernelSpec& kernel, int columns) {
  return divide_up(divide_up(columns, kernel.portable().column_warps), column_group) * column_group;
}

/// Bytes of a row of `elements` elements in shared memory: an odd number of chunks.
int64_t row_bytes(const KernelSpec& kernel, int elements) {
  return int64_t{elements * (is_16_bit(kernel) ? 2 : 4) / chunk_bytes | 1} * chunk_bytes;
}

int64_t operand_row_bytes(const KernelSpec& kernel, int columns) {
  return row_bytes(kernel, columns_of_warp(kernel, columns) * kernel.portable().column_warps);
}

/// backward: the column warps split the queries of the scores, and P goes through shared memory (backward_tiles.cuh).
bool splits_scores(const KernelSpec& kernel) {
  return kernel.portable().column_warps > 1 && kernel.tile_queries % (row_group * kernel.portable().column_warps) == 0;
}

bool fits(const KernelSpec& kernel, const Gpu& gpu) {
  constexpr int64_t reserved = 1024;  // by the system, of each CTA
  const int64_t bytes = shared_bytes(kernel) + static_shared_bytes;
  const int64_t of_multiprocessor = gpu.shared_bytes + reserved;
  return bytes <= gpu.shared_bytes && kernel.ctas * (bytes + reserved) <= of_multiprocessor;
}

}  // namespace

int64_t shared_bytes(const KernelSpec& kernel) {
  const int64_t row = operand_row_bytes(kernel, kernel.head_dim);
  const int64_t row_v = operand_row_bytes(kernel, kernel.head_dim_v);
  const int64_t stages_of_keys = kernel.stages * kernel.tile_keys * (row + row_v);
  switch (kernel.kind) {
    case KernelKind::forward:
      return kernel.tile_queries * std::max(row, row_v) + stages_of_keys;
    case KernelKind::backward_query:
      return kernel.tile_queries * (row + row_v) + stages_of_keys;
    case KernelKind::parameter_gradients: {
      return kernel.tile_queries * (row + row_v) + stages_of_keys + kernel.warps * warp_terms_bytes(kernel.tile_keys);
    }
    case KernelKind::backward: {
      const int64_t scores = kernel.tile_keys * row_bytes(kernel, kernel.tile_queries);
      const bool stores_p = splits_scores(kernel);
      return (kernel.tile_keys + kernel.stages * kernel.tile_queries) * (row + row_v) +
             (stores_p || kernel.portable().reduce_grad_query ? scores : 0) + (stores_p ? scores : 0);
    }
    case KernelKind::reduce:
    case KernelKind::round_parameters:
    case KernelKind::complete_terms:
    case KernelKind::wide_backward:
    case KernelKind::key_schedule:
    case KernelKind::round_grad_query:
    case KernelKind::locate_sequences:
    case KernelKind::group_entries:
    case KernelKind::find_overlap:
    case KernelKind::clear_gaps:
    case KernelKind::check_offsets:
    case KernelKind::check_indices:
    case KernelKind::norm:
    case KernelKind::norm_backward:
    case KernelKind::norm_reduce:
    case KernelKind::locate_lists:
    case KernelKind::list_key_tiles:
    case KernelKind::list_query_tiles:
      break;
  }
  return 0;
}

int accumulator_registers(const KernelSpec& kernel) {
  constexpr int threads_of_warp = 32;
  const int columns = columns_of_warp(kernel, kernel.head_dim);
  const int columns_v = columns_of_warp(kernel, kernel.head_dim_v);
  const auto of_warp = [](int rows, int count) { return rows * count / threads_of_warp; };
  switch (kernel.kind) {
    case KernelKind::forward:
      return of_warp(kernel.tile_queries / kernel.warps, columns_v + kernel.tile_keys);
    case KernelKind::backward_query:
      return of_warp(kernel.tile_queries / kernel.warps, columns + 2 * kernel.tile_keys);
    case KernelKind::parameter_gradients:
      return of_warp(kernel.tile_queries / kernel.warps, 2 * kernel.tile_keys);
    case KernelKind::backward: {
      const int queries = kernel.tile_queries / (splits_scores(kernel) ? kernel.portable().column_warps : 1);
      const int scores = of_warp(kernel.tile_keys / kernel.warps, 2 * queries);
      const int grad_query = of_warp(kernel.tile_queries, columns / kernel.warps);  // of all column warps
      return of_warp(kernel.tile_keys / kernel.warps, columns + columns_v) +
             std::max(scores, kernel.portable().reduce_grad_query ? grad_query : 0);
    }
    case KernelKind::reduce:
    case KernelKind::round_parameters:
    case KernelKind::complete_terms:
    case KernelKind::wide_backward:
    case KernelKind::key_schedule:
    case KernelKind::round_grad_query:
    case KernelKind::locate_sequences:
    case KernelKind::group_entries:
    case KernelKind::find_overlap:
    case KernelKind::clear_gaps:
    case KernelKind::check_offsets:
    case KernelKind::check_indices:
    case KernelKind::norm:
    case KernelKind::norm_backward:
    case KernelKind::norm_reduce:
    case KernelKind::locate_lists:
    case KernelKind::list_key_tiles:
    case KernelKind::list_query_tiles:
      break;
  }
  return 0;
}

void choose_tiles(KernelSpec& kernel, const Gpu& gpu, FunctionRegisters function) {
  const bool takes_many = function == FunctionRegisters::many || gpu.capability >= blackwell || !kernel.aligned;
  for (const Tile& tile : tiles_of(kernel)) {
    kernel.tile_queries = tile.queries;
    kernel.tile_keys = tile.keys;
    kernel.warps = tile.warps;
    kernel.portable().column_warps = tile.column_warps;
    kernel.stages = tile.stages;
    kernel.ctas = tile.ctas;
    const bool has_several_entries = kernel.keys_shared || kernel.has_batch_map || kernel.owns_rows;
    const int registers = accumulator_registers(kernel) + (has_several_entries ? registers_of_several_entries : 0);
    if (registers <= (takes_many ? tile.most_registers_with_many : tile.most_registers) && fits(kernel, gpu)) return;
  }
  throw Error(
      ErrorKind::runtime,
      fmt::format("head_dim {}, head_dim_v {}: expected a GPU that gives a CTA at least {} KB of shared memory, "
                  "got {} KB; use smaller head dims, or the CPU",
                  kernel.head_dim, kernel.head_dim_v, (shared_bytes(kernel) + static_shared_bytes + 1023) / 1024,
                  gpu.shared_bytes / 1024));
}

}  // namespace gdpa::families
