// The text of a kernel's `struct Config`, which a generated source passes to the kernel template.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace gdpa::gpu {

class ConfigText {
 public:
  /// Includes a header of kernels/.
  void include(std::string_view header) { includes_ += fmt::format("#include \"{}\"\n", header); }
  /// A type of a header of kernels/: the source includes the header.
  void type_of_header(std::string_view name, std::string_view value, std::string_view header) {
    include(header);
    type(name, value);
  }
  void type(std::string_view name, std::string_view value) { text_ += fmt::format("  using {} = {};\n", name, value); }
  void number(std::string_view name, int value) { constant("int", name, fmt::format("{}", value)); }
  void flag(std::string_view name, bool value) { constant("bool", name, fmt::format("{}", value)); }
  void constant(std::string_view type, std::string_view name, std::string_view value) {
    text_ += fmt::format("  static constexpr {} {} = {};\n", type, name, value);
  }

  std::string text() const { return fmt::format("{}struct Config {{\n{}}};\n", includes_, text_); }

 private:
  std::string includes_;
  std::string text_;
};

}  // namespace gdpa::gpu
