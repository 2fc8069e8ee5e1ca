// Lookups: reads of tensors with few elements for each head, such as w[h, bucket(t_q[i] - t_k[j])]. A kernel may copy
// these elements into shared memory, so that the address of an element has 32 bits and needs no strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/index_printer.h"
#include "expression/function.h"

namespace gdpa::activation {

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

/// The index of a lookup as two parts: the first one is computed for each score, and the second one when the elements
/// are copied.
struct LookupEntry {
  std::uint16_t step;  ///< the result of the first part. The clamps after this step are the second part
  int count = 0;       ///< the first part is from 0 to `count` - 1; 0 if that is not known, so that it must be clamped
};
LookupEntry lookup_entry(const Program& program, const IndexPrinter& printer);

}  // namespace gdpa::activation
