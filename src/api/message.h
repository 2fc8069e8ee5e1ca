// Error messages. Each has one form: the argument, the expected value, the given value, and the remedy.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "gdpa/tensor.h"

namespace gdpa::api {

/// "(5, 4, 128)"
std::string shape_of(const TensorView& view);

/// "rank 3 with shape (5, 4, 128)"
std::string rank_and_shape(const TensorView& view);

std::string to_string(Device device);

/// Throws Error (value) with the text "<who>: expected <expected>, got <came>; <remedy>".
[[noreturn]] void refuse(std::string_view who, std::string_view expected, std::string_view came,
                         std::string_view remedy);
[[noreturn]] void refuse(std::string_view who, std::string_view expected, int64_t came, std::string_view remedy);

/// Throws Error (type) with such a text, for a dtype or a device.
[[noreturn]] void refuse_type(std::string_view who, std::string_view expected, std::string_view came,
                              std::string_view remedy);

}  // namespace gdpa::api
