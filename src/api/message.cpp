// See message.h.
#include "api/message.h"

#include <fmt/ranges.h>

#include "gdpa/error.h"

namespace gdpa {

const char* name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
  }
  return "an unknown dtype";
}

namespace api {
namespace {

[[noreturn]] void refuse_argument(ErrorKind kind, std::string_view who, std::string_view expected,
                                  std::string_view came, std::string_view remedy) {
  throw Error(kind, fmt::format("{}: expected {}, got {}; {}", who, expected, came, remedy));
}

}  // namespace

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
  refuse_argument(ErrorKind::value, who, expected, came, remedy);
}

void refuse(std::string_view who, std::string_view expected, int64_t came, std::string_view remedy) {
  refuse(who, expected, fmt::to_string(came), remedy);
}

void refuse_type(std::string_view who, std::string_view expected, std::string_view came, std::string_view remedy) {
  refuse_argument(ErrorKind::type, who, expected, came, remedy);
}

}  // namespace api
}  // namespace gdpa
