// What the host files of the portable attention kernels share: their specification, and the choice of a tile.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "gpu/kernels/attention.h"
#include "gpu/launch.h"

namespace gdpa::gpu {

struct PortableKernel : AttentionKernel {
  int column_warps = 1;  ///< warps along the columns of the accumulators; backward: also along the queries of S
  int ctas = 1;          ///< CTAs that have to fit on one multiprocessor

  auto operator<=>(const PortableKernel&) const = default;
};

/// A tile, and the largest number of registers for its accumulators. With more registers, the compiler spills, or a
/// later tile of the list is faster. The second limit is lower. It applies to functions that need many registers, to
/// rows that are not aligned (their copies need registers), and to Blackwell, for which the compiler schedules
/// differently.
struct PortableTile {
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

/// Sets the tile, warps, stages and CTAs of a kernel to the first fitting tile of a list. All other members must be
/// set. `needs()` returns what the kernel needs with its present tile. Throws Error (runtime) if the GPU has too little
/// shared memory for all of them.
void choose_portable_tile(std::span<const PortableTile> tiles, const Gpu& gpu, bool needs_many_registers,
                          const std::function<TileNeeds()>& needs, PortableKernel& kernel);

int64_t portable_row_bytes(const AttentionKernel& kernel, int elements);
int64_t portable_operand_row_bytes(const PortableKernel& kernel, int columns);
int portable_columns_of_warp(const PortableKernel& kernel, int columns);
constexpr int registers_of_warp(int rows, int count) { return rows * count / 32; }

/// The bytes of the stages of K and V, and of Q and dO.
int64_t bytes_of_key_stages(const PortableKernel& kernel);
int64_t bytes_of_queries_and_output(const PortableKernel& kernel);

/// Writes Config::Layout and the numbers of warps and CTAs. `layout` is a name in common/<header>.cuh.
void write_portable(const PortableKernel& kernel, std::string_view layout, std::string_view header,
                    std::string_view warps, ConfigText& config);

SourceParts portable_source(const PortableKernel& kernel, std::string functions, const ConfigText& config);

/// Launches a portable attention kernel, whose arguments are CommonArguments.
template <class Spec>
Launch launch(const Spec& kernel, int64_t ctas) {
  return Launch::of(kernel, ctas, [](const BoundCall& call) { return call.common; });
}

}  // namespace gdpa::gpu
