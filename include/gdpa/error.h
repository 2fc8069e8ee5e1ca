// The exception of gdpa. Its message states the expected value, the given value and a remedy.
#pragma once

#include <stdexcept>
#include <string>

#include "gdpa/export.h"

namespace gdpa {

/// The kind of an Error. Python raises ValueError, TypeError, RuntimeError and torch.OutOfMemoryError for these kinds.
enum class GDPA_API ErrorKind {
  value,          ///< an argument has an impossible value: size, stride, offsets, name, number
  type,           ///< an argument has the wrong type: dtype, device, rank
  runtime,        ///< the machine cannot compute the call: a missing library, too little memory of the host
  out_of_memory,  ///< a GPU has too little free memory
};

/// The error of every public function. If an argument is wrong, it is thrown before anything is computed or written.
class GDPA_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace gdpa
