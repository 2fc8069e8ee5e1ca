// What the host files of the portable attention kernels share: their specification, and the choice of a tile.
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "gdpa/error.h"
#include "gpu/kernels/attention.h"
#include "gpu/launch.h"

namespace gdpa::gpu {

struct PortableKernel : AttentionKernel {
  int column_warps = 1;  ///< warps along the columns of the accumulators; backward: also along the queries of S
  int ctas = 1;          ///< CTAs that have to fit on one multiprocessor

  using Arguments = CommonArguments;
  auto operator<=>(const PortableKernel&) const = default;
};

/// A tile for elements of a size, and the largest number of registers for its accumulators. With more registers, the
/// compiler spills, or a later tile of the list is faster. The second limit is lower. It applies to functions that need
/// many registers, to rows that are not aligned (their copies need registers), and to Blackwell, for which the compiler
/// schedules differently.
///
/// A kernel gets the first tile of its list that fits. The tiles for an element size begin with those that were
/// measured on a GPU with 227 KB of shared memory. The tiles after them are for 163 KB (A100), for 99 KB (Ada, and the
/// small GPUs of Ampere and Blackwell), and for wider rows. docs/kernels/portable.md has the tables.
struct PortableTile {
  int element_bytes;
  int queries;
  int keys;
  int warps;  ///< along the queries; backward: along the keys
  int column_warps;
  int stages;
  int ctas;
  int most_registers;
  int most_registers_with_many;
};

/// What a kernel with a tile needs.
struct TileNeeds {
  int64_t shared_bytes = 0;  ///< dynamic shared memory of a CTA, the same number as the kernel's own constant
  int registers = 0;         ///< of a thread, which hold accumulators, the most at once
};

/// An upper bound of the static shared memory of a CTA: its piece of work, and the coordinates of the tiles in its
/// stages.
constexpr int64_t portable_static_shared_bytes = 256;

inline bool fits(const PortableKernel& kernel, int64_t shared_bytes, const Gpu& gpu) {
  constexpr int64_t reserved = 1024;  // by the system, of each CTA
  const int64_t bytes = shared_bytes + portable_static_shared_bytes;
  const int64_t of_multiprocessor = gpu.shared_bytes + reserved;
  return bytes <= gpu.shared_bytes && kernel.ctas * (bytes + reserved) <= of_multiprocessor;
}

/// Sets the tile, warps, stages and CTAs of a kernel to the first tile of Spec::tiles that fits. All other members must
/// be set. Throws Error (runtime) if the GPU has too little shared memory for all of them.
template <class Spec>
void choose_portable_tile(const Gpu& gpu, bool needs_many_registers, Spec& kernel) {
  constexpr int blackwell = 100;
  const bool takes_many = needs_many_registers || gpu.capability >= blackwell || !kernel.aligned;
  for (const PortableTile& tile : Spec::tiles) {
    if (tile.element_bytes != bytes_of(kernel.element)) continue;
    kernel.tile_queries = tile.queries;
    kernel.tile_keys = tile.keys;
    kernel.warps = tile.warps;
    kernel.column_warps = tile.column_warps;
    kernel.stages = tile.stages;
    kernel.ctas = tile.ctas;
    const TileNeeds needs = kernel.needs();
    const int most = takes_many ? tile.most_registers_with_many : tile.most_registers;
    if (needs.registers <= most && fits(kernel, needs.shared_bytes, gpu)) return;
  }
  throw Error(
      ErrorKind::runtime,
      fmt::format("head_dim {}, head_dim_v {}: expected a GPU that gives a CTA at least {} KB of shared memory, "
                  "got {} KB; use smaller head dims, or the CPU",
                  kernel.head_dim, kernel.head_dim_v,
                  (kernel.needs().shared_bytes + portable_static_shared_bytes + 1023) / 1024, gpu.shared_bytes / 1024));
}

/// Bytes of a row of `elements` elements in shared memory: an odd number of chunks.
inline int64_t portable_row_bytes(const AttentionKernel& kernel, int elements) {
  constexpr int chunk_bytes = 16;
  return int64_t{elements * bytes_of(kernel.element) / chunk_bytes | 1} * chunk_bytes;
}

/// The columns of one of the column warps, padded as head dims are.
inline int portable_columns_of_warp(const PortableKernel& kernel, int columns) {
  constexpr int columns_of_product = 16;
  const int of_warp = (columns + kernel.column_warps - 1) / kernel.column_warps;
  return (of_warp + columns_of_product - 1) / columns_of_product * columns_of_product;
}

inline int64_t portable_operand_row_bytes(const PortableKernel& kernel, int columns) {
  return portable_row_bytes(kernel, portable_columns_of_warp(kernel, columns) * kernel.column_warps);
}

/// The bytes of a row of Q or K and of a row of dO or V.
inline int64_t bytes_of_both_rows(const PortableKernel& kernel) {
  return portable_operand_row_bytes(kernel, kernel.head_dim) + portable_operand_row_bytes(kernel, kernel.head_dim_v);
}

constexpr int registers_of_warp(int rows, int count) { return rows * count / 32; }

/// Writes Config::Layout and the numbers of CTAs and warps. `warps` is the name of the number of warps.
inline void write_portable(const PortableKernel& kernel, const LayoutName& layout, std::string_view warps,
                           ConfigText& config) {
  write_layout("gdpa::", layout, kernel.has_output_offsets, config);
  config.number("ctas", kernel.ctas);
  config.number(warps, kernel.warps);
  config.number("column_warps", kernel.column_warps);
}

/// Launches a portable attention kernel.
template <class Spec>
Launch launch(const Spec& kernel, int64_t ctas) {
  return Launch::of(kernel, ctas, [](const BoundCall& call) { return call.common; });
}

}  // namespace gdpa::gpu
