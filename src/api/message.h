// Error messages. Each has one form: the argument, the expected value, the given value, and the remedy.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "gdpa/error.h"
#include "gdpa/tensor.h"

namespace gdpa::api {

/// "(5, 4, 128)"
template <class Pointer>
std::string shape_of(const BasicTensorView<Pointer>& view) {
  std::string text = "(";
  for (int i = 0; i < view.rank; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", view.sizes[static_cast<std::size_t>(i)]);
  }
  return text + (view.rank == 1 ? ",)" : ")");
}

std::string to_string(Device device);

/// Throws "<who>: expected <expected>, got <came>; <remedy>".
[[noreturn]] void refuse(ErrorKind kind, std::string_view who, std::string_view expected, std::string_view came,
                         std::string_view remedy);

}  // namespace gdpa::api
