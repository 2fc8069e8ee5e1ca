// The forms of the elements of a dense bias in shared memory. The host includes this file too.
#pragma once

#include "gdpa/integers.h"

namespace gdpa {

/// A tile of a dense bias in shared memory (common/staged_tile.cuh). `none`: each score loads its own element.
/// `aligned`: each row of the bias begins at a multiple of 16 bytes in global memory.
enum class BiasTile : int { none, aligned, unaligned };

/// The bytes of a row of a tile in shared memory with `bytes` bytes of elements, a multiple of 32.
GDPA_HOST_DEVICE constexpr int staged_row_bytes(BiasTile tile, int bytes) {
  if (tile == BiasTile::none) return 0;
  return tile == BiasTile::aligned ? (bytes + 127) / 128 * 128 : bytes + 16;
}

}  // namespace gdpa
