// The elements of tensors that f reads, as far as the kernels of Hopper stage them in shared memory or order their
// tiles by them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/inputs.h"
#include "common/bias_tile.cuh"
#include "expression/lookup.h"
#include "gpu/call.h"

namespace gdpa::gpu {

/// A dense bias: the elements of activation::tile_read() if kernels may load its rows.
struct DenseBias {
  int element_bytes = 0;
  BiasTile tile = BiasTile::none;
};

/// Kernels may load rows if adjacent keys have adjacent elements. In deterministic mode, an axis of one element counts
/// as a longer one: the bias of a sequence alone may be as short as the sequence.
inline DenseBias dense_bias_of(const Call& call) {
  const activation::Function& function = call.expressions.function;
  const Problem& problem = call.problem;
  const std::vector<activation::Input>& inputs = function.inputs();
  const std::optional<std::size_t> read = activation::tile_read(function, problem.tensor_types);
  if (!read) return {};
  const activation::Input& input = inputs[*read];
  const BoundTensor& tensor = call.params.parameters[input.tensor];
  constexpr int64_t copy_bytes = 16;
  const int64_t bytes = tensor.type == NumberType::float32 ? 4 : 2;
  bool is_aligned = reinterpret_cast<std::uintptr_t>(tensor.data) % copy_bytes == 0;
  for (std::size_t axis = 0; axis < input.indices.size(); ++axis) {
    const bool is_long = tensor.sizes[axis] > 1 || problem.deterministic;
    if (activation::bare_index(input.indices[axis], inputs) == activation::Index::key) {
      const bool begins_anywhere = activation::is_row_axis(input, axis);
      if (begins_anywhere || !is_long || tensor.strides[axis] != 1) return {};
    } else if (is_long) {
      is_aligned = is_aligned && tensor.strides[axis] * bytes % copy_bytes == 0;
    }
  }
  return {static_cast<int>(bytes), is_aligned ? BiasTile::aligned : BiasTile::unaligned};
}

/// The elements of tensors that f reads at each score.
struct StagedReads {
  int all = 0;
  int of_lines = 0;  ///< depend only on the key or the difference of the positions: staged in shared memory
  int lookups = 0;   ///< lookups that may be staged there too (expression/lookup.h)
  DenseBias bias;    ///< may be staged there too
};

/// The number of lookups of f if each has few elements, otherwise 0.
inline int lookups_with_few_elements(const Call& call) {
  const activation::Function& function = call.expressions.function;
  const std::vector<activation::Lookup> lookups = activation::lookups_of(function, call.problem.tensor_types);
  const bool are_few = std::ranges::all_of(lookups, [&](const activation::Lookup& lookup) {
    const BoundTensor& tensor = call.params.parameters[function.inputs()[lookup.read].tensor];
    return tensor.sizes[lookup.axis] <= most_lookup_elements;
  });
  return are_few ? static_cast<int>(lookups.size()) : 0;
}

inline StagedReads staged_reads_of(const Call& call) {
  const activation::FunctionFacts& facts = call.facts();
  if (facts.reads == 0) return {};
  return {facts.reads, facts.reads_of_lines(), lookups_with_few_elements(call), dense_bias_of(call)};
}

/// Whether f reads, for each pair of a query and a key, an element of a tensor that all batch entries share.
inline bool shares_pairs(const Call& call) {
  const std::vector<activation::Input>& inputs = call.expressions.function.inputs();
  return std::ranges::any_of(inputs, [&](const activation::Input& input) {
    if (input.kind != activation::Input::Kind::read) return false;
    const BoundTensor& tensor = call.params.parameters[input.tensor];
    std::size_t positions = 0;
    for (std::size_t axis = 0; axis < input.indices.size(); ++axis) {
      const auto bare = activation::bare_index(input.indices[axis], inputs);
      const bool is_position = bare == activation::Index::query || bare == activation::Index::key;
      positions += is_position && tensor.sizes[axis] > 1 ? 1 : 0;
      const bool varies_in_batch = tensor.sizes[axis] > 1 && tensor.strides[axis] != 0 &&
                                   activation::reads_index(input.indices[axis], inputs, activation::Index::batch);
      if (varies_in_batch) return false;
    }
    return positions > 1;
  });
}

}  // namespace gdpa::gpu
