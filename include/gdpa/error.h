// The one exception that gdpa throws: what was expected, what came, and what to do about it.
#pragma once

#include <stdexcept>
#include <string>

#include "gdpa/export.h"

namespace gdpa {

/// What kind of mistake an Error reports. Python raises ValueError, TypeError and RuntimeError for them.
enum class GDPA_API ErrorKind {
  value,    ///< an argument has an impossible value: size, stride, offsets, name, number
  type,     ///< an argument has the wrong type: dtype, device, rank of the thing given
  runtime,  ///< the machine could not do it: memory, a missing library
};

/// Thrown by every public function, before anything is computed or written where an argument is at fault.
class GDPA_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace gdpa
