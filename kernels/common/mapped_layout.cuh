// Config::Layout of the key-major kernels of a call with a batch map. The owners are the sequences of keys, and the
// queries of several batch entries attend to the keys of one owner (KeySequences in arguments.cuh). Query-major kernels
// have the layout of packed_layout.cuh: each batch entry has one sequence of keys.
#pragma once

#include "common/packed_layout.cuh"

namespace gdpa {

struct MappedLayout : PackedLayout {
  static constexpr bool has_batch_map = true;
};

}  // namespace gdpa
