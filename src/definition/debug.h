// The environment variables of debug mode.
#pragma once

#include <cstdlib>
#include <string_view>

namespace gdpa {

/// Whether an environment variable is 1.
inline bool is_set(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr && std::string_view(text) == "1";
}

/// Whether each index of a score inside the mask is checked. The first index that is outside of its axis is printed.
inline bool checks_indices() { return is_set("GDPA_CHECK_INDICES"); }

/// Whether offsets are checked on the device, for the life of the process.
inline bool checks_offsets() {
  static const bool is_asked = is_set("GDPA_CHECK_OFFSETS");
  return is_asked;
}

}  // namespace gdpa
