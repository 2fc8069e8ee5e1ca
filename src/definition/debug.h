// The environment variables that are 1 or 0, among them those of debug mode.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "gdpa/error.h"

namespace gdpa {

/// Whether an environment variable is 1. It may also be 0, empty or missing. Throws Error (value) for another text.
inline bool is_set(const char* variable) {
  const char* const text = std::getenv(variable);
  const std::string_view value = text == nullptr ? "" : text;
  if (!value.empty() && value != "0" && value != "1") {
    throw Error(ErrorKind::value,
                std::string(variable) + ": expected 1 or 0, got \"" + std::string(value) + "\"; correct it");
  }
  return value == "1";
}

/// Whether each index of a score inside the mask is checked. The first index that is outside of its axis is printed.
inline bool checks_indices() { return is_set("GDPA_CHECK_INDICES"); }

/// Whether offsets are checked on the device, for the life of the process.
inline bool checks_offsets() {
  static const bool is_asked = is_set("GDPA_CHECK_OFFSETS");
  return is_asked;
}

}  // namespace gdpa
