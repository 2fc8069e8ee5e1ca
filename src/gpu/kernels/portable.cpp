// See portable.h.
#include "gpu/kernels/portable.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "gdpa/error.h"

namespace gdpa::gpu {
namespace {

constexpr int chunk_bytes = 16;         // of a row in shared memory
constexpr int columns_of_product = 16;  // to which head dims are padded

bool fits(const PortableKernel& kernel, int64_t shared_bytes, const Gpu& gpu) {
  constexpr int64_t reserved = 1024;  // by the system, of each CTA
  const int64_t bytes = shared_bytes + portable_static_shared_bytes;
  const int64_t of_multiprocessor = gpu.shared_bytes + reserved;
  return bytes <= gpu.shared_bytes && kernel.ctas * (bytes + reserved) <= of_multiprocessor;
}

}  // namespace

/// Bytes of a row of `elements` elements in shared memory: an odd number of chunks.
int64_t portable_row_bytes(const AttentionKernel& kernel, int elements) {
  return int64_t{elements * bytes_of(kernel.element) / chunk_bytes | 1} * chunk_bytes;
}

int portable_columns_of_warp(const PortableKernel& kernel, int columns) {
  const int of_warp = (columns + kernel.column_warps - 1) / kernel.column_warps;
  return (of_warp + columns_of_product - 1) / columns_of_product * columns_of_product;
}

int64_t portable_operand_row_bytes(const PortableKernel& kernel, int columns) {
  return portable_row_bytes(kernel, portable_columns_of_warp(kernel, columns) * kernel.column_warps);
}

int64_t bytes_of_key_stages(const PortableKernel& kernel) {
  return kernel.stages * kernel.tile_keys *
         (portable_operand_row_bytes(kernel, kernel.head_dim) + portable_operand_row_bytes(kernel, kernel.head_dim_v));
}

int64_t bytes_of_queries_and_output(const PortableKernel& kernel) {
  return kernel.tile_queries *
         (portable_operand_row_bytes(kernel, kernel.head_dim) + portable_operand_row_bytes(kernel, kernel.head_dim_v));
}

void choose_portable_tile(std::span<const PortableTile> tiles, const Gpu& gpu, bool needs_many_registers,
                          const std::function<TileNeeds()>& needs, PortableKernel& kernel) {
  constexpr int blackwell = 100;
  const bool takes_many = needs_many_registers || gpu.capability >= blackwell || !kernel.aligned;
  for (const PortableTile& tile : tiles) {
    kernel.tile_queries = tile.queries;
    kernel.tile_keys = tile.keys;
    kernel.warps = tile.warps;
    kernel.column_warps = tile.column_warps;
    kernel.stages = tile.stages;
    kernel.ctas = tile.ctas;
    const TileNeeds of_tile = needs();
    const int most = takes_many ? tile.most_registers_with_many : tile.most_registers;
    if (of_tile.registers <= most && fits(kernel, of_tile.shared_bytes, gpu)) return;
  }
  throw Error(
      ErrorKind::runtime,
      fmt::format("head_dim {}, head_dim_v {}: expected a GPU that gives a CTA at least {} KB of shared memory, "
                  "got {} KB; use smaller head dims, or the CPU",
                  kernel.head_dim, kernel.head_dim_v,
                  (needs().shared_bytes + portable_static_shared_bytes + 1023) / 1024, gpu.shared_bytes / 1024));
}

void write_portable(const PortableKernel& kernel, std::string_view layout, std::string_view header,
                    std::string_view warps, ConfigText& config) {
  if (kernel.has_output_offsets) config.include("common/output_offsets.cuh");
  config.type_of_header("Layout", layout_text("gdpa::", layout, kernel.has_output_offsets), header);
  config.number("ctas", kernel.ctas);
  config.number(warps, kernel.warps);
  config.number("column_warps", kernel.column_warps);
}

SourceParts portable_source(const PortableKernel& kernel, std::string functions, const ConfigText& config) {
  return {.functions = std::move(functions), .config = config.text(), .ctas = kernel.ctas};
}

}  // namespace gdpa::gpu
