// Config::Layout of the key-major kernel of keys whose sequences overlap. The owners are tiles of rows of the operand,
// not of sequences. A row may belong to several sequences, whose queries all attend to it, so that the sum of its
// gradient stays in registers.
#pragma once

#include "common/packed_layout.cuh"

namespace gdpa {

struct RowsLayout : PackedLayout {
  static constexpr bool owns_rows = true;
};

}  // namespace gdpa
