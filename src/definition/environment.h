// The environment variables that gdpa reads. An empty variable counts as missing. A value without a meaning is an error
// instead of a default that nobody notices.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "gdpa/error.h"

namespace gdpa {

/// Returns the value of a variable, or an empty text.
inline std::string_view variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::string_view() : std::string_view(text);
}

/// Throws Error (value) for a value without a meaning.
[[noreturn]] inline void refuse_variable(const char* name, std::string_view expected) {
  throw Error(ErrorKind::value, fmt::format("{}: expected {}, got \"{}\"; correct it", name, expected, variable(name)));
}

/// Returns whether a variable is 1. 0 is the same as a missing variable.
inline bool is_set(const char* name) {
  const std::string_view text = variable(name);
  if (text.empty() || text == "0" || text == "1") return text == "1";
  refuse_variable(name, "1 or 0");
}

/// Returns a variable that is a whole number above 0, or `otherwise` if it is missing.
inline std::int64_t positive_number(const char* name, std::int64_t otherwise) {
  const std::string_view text = variable(name);
  if (text.empty()) return otherwise;
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end || number <= 0) refuse_variable(name, "a whole number above 0");
  return number;
}

/// Debug mode: whether each index of a score inside the mask is checked. The first index that is outside of its axis is
/// printed.
inline bool checks_indices() { return is_set("GDPA_CHECK_INDICES"); }

/// Debug mode: whether offsets are checked on the device, for the life of the process.
inline bool checks_offsets() {
  static const bool is_asked = is_set("GDPA_CHECK_OFFSETS");
  return is_asked;
}

}  // namespace gdpa
