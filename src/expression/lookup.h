// The reads whose elements a kernel may copy into shared memory: a dense bias, and lookups, which are reads of tensors
// with few elements for each head, such as w[h, bucket(t_q[i] - t_k[j])]. The address of an element then has 32 bits
// and needs no strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "expression/function.h"

namespace gdpa::activation {

/// Returns the position in Function::inputs() of the read whose elements for a tile of scores a kernel may copy to
/// shared memory (kernels/common/staged_tile.cuh): the first one of a floating type with an axis for i and an axis for
/// j, whose other indices depend on neither.
std::optional<std::size_t> tile_read(const Function& function, unsigned tensor_types);

/// A read of a tensor. In one axis, the index is computed from both the query and the key. In the other axes, the index
/// is the same for all scores of a head and a batch entry.
struct Lookup {
  std::size_t read;  ///< its position in Function::inputs()
  std::size_t axis;
};

/// Returns the lookups of a function that read floating numbers. A list of functions has none. A function with a dense
/// bias that a kernel may copy (tile_read()) has none either.
std::vector<Lookup> lookups_of(const Function& function, unsigned tensor_types);

/// The difference of two elements, such as t_q[i] - t_k[j]: one depends on the query, and the other one on the key. All
/// indices of the lookups read positions only through this difference, or only through its absolute value.
struct LookupDifference {
  std::size_t of_query = 0, of_key = 0;  ///< their positions in Function::inputs()
  bool is_query_first = false;           ///< the element of the query minus the element of the key
  bool is_absolute = false;
  bool is_of_integers = false;
  bool fits_32_bits = false;  ///< all integers of the indices fit into 32 bits if the difference is at most 2^30
  bool is_monotone = false;   ///< the indices rise, or fall, with the difference

  bool operator==(const LookupDifference&) const = default;
};
std::optional<LookupDifference> lookup_difference(const Function& function, const std::vector<Lookup>& lookups,
                                                  unsigned tensor_types);

/// Whether a tile can have a LookupForm other than `any` without elements in shared memory
/// (kernels/common/lane_lookups.cuh).
bool has_lookup_forms(const Function& function, unsigned tensor_types);

/// Returns the lookups if the entries of a tile, in each of them, are a range that a warp can compute from the smallest
/// and the largest difference; otherwise none.
std::vector<Lookup> lookups_with_ranges(const Function& function, unsigned tensor_types);

/// Returns the step of the difference in a program of an index, or of its absolute value.
std::optional<std::uint16_t> difference_step(const Program& program, const std::vector<Input>& inputs);

}  // namespace gdpa::activation
