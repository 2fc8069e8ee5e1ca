// See message.h.
#include "api/message.h"

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

std::string to_string(Device device) {
  return device.kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

void refuse(ErrorKind kind, std::string_view who, std::string_view expected, std::string_view came,
            std::string_view remedy) {
  throw Error(kind, fmt::format("{}: expected {}, got {}; {}", who, expected, came, remedy));
}

}  // namespace api
}  // namespace gdpa
