// The environment variables of debug mode.
#pragma once

#include "definition/environment.h"

namespace gdpa {

/// Whether each index of a score inside the mask is checked. The first index that is outside of its axis is printed.
inline bool checks_indices() { return is_set("GDPA_CHECK_INDICES"); }

/// Whether offsets are checked on the device, for the life of the process.
inline bool checks_offsets() {
  static const bool is_asked = is_set("GDPA_CHECK_OFFSETS");
  return is_asked;
}

}  // namespace gdpa
