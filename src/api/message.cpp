// See message.h.
#include "api/message.h"

#include <fmt/ranges.h>

#include <array>
#include <cstddef>

#include "gdpa/error.h"

namespace gdpa {

const char* name(DType dtype) {
  constexpr std::array names = {"float32", "float64", "bfloat16", "float16", "int32", "int64"};
  const auto index = static_cast<std::size_t>(dtype);
  return index < names.size() ? names[index] : "an unknown dtype";
}

namespace api {

constexpr const char* message_form = "{}: expected {}, got {}; {}";

std::string shape_of(const TensorView& view) {
  const auto end = view.sizes.begin() + view.rank;
  return fmt::format("({}{})", fmt::join(view.sizes.begin(), end, ", "), view.rank == 1 ? "," : "");
}

std::string rank_and_shape(const TensorView& view) {
  return fmt::format("rank {} with shape {}", view.rank, shape_of(view));
}

std::string to_string(Device device) {
  return device.kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

void refuse(std::string_view who, std::string_view expected, std::string_view came, std::string_view remedy) {
  throw Error(ErrorKind::value, fmt::format(message_form, who, expected, came, remedy));
}

void refuse(std::string_view who, std::string_view expected, int64_t came, std::string_view remedy) {
  refuse(who, expected, fmt::to_string(came), remedy);
}

void refuse_type(std::string_view who, std::string_view expected, std::string_view came, std::string_view remedy) {
  throw Error(ErrorKind::type, fmt::format(message_form, who, expected, came, remedy));
}

}  // namespace api
}  // namespace gdpa
