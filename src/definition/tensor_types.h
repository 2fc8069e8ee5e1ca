// The types of the tensors that an expression reads, as one number: Problem::tensor_types and Problem::mask_types.
#pragma once

#include <cstddef>

#include "definition/bound_tensor.h"

namespace gdpa {

/// The bits of tensor number `tensor`: its type, and whether offsets of its elements need 64 bits.
constexpr unsigned tensor_type_bits(std::size_t tensor, NumberType type, bool has_wide_offsets) {
  return (static_cast<unsigned>(type) | (has_wide_offsets ? 8U : 0U)) << (4 * tensor);
}

constexpr NumberType number_type(unsigned tensor_types, std::size_t tensor) {
  return static_cast<NumberType>(tensor_types >> (4 * tensor) & 7U);
}

constexpr bool is_of_integers(unsigned tensor_types, std::size_t tensor) {
  const NumberType type = number_type(tensor_types, tensor);
  return type == NumberType::int32 || type == NumberType::int64;
}

constexpr bool has_wide_offsets(unsigned tensor_types, std::size_t tensor) {
  return (tensor_types >> (4 * tensor) & 8U) != 0;
}

}  // namespace gdpa
