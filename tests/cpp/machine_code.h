// What the tests of compiled kernels ask of the log of ptxas and of the machine code as text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jit/nvrtc.h"

namespace gdpa::gpu {

/// Returns the instructions of machine code with an operation that begins with `operation`.
inline int count(std::string_view code, const std::string& operation) {
  int result = 0;
  for (std::size_t at = 0; (at = code.find(" " + operation, at)) != std::string_view::npos; ++at) ++result;
  return result;
}

/// Of ptxas: C7508: setmaxnreg ignored; C7510 to C7519: products serialised.
inline bool has_warning(const jit::Compiled& compiled) {
  return std::regex_search(compiled.log, std::regex("C75[01][0-9]"));
}

/// The bytes of spilled registers that the code stores and loads. ptxas states both numbers for each function.
inline int spilled_bytes(const jit::Compiled& compiled) {
  static const std::regex pattern("([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads");
  int bytes = -1;  // nothing stated
  for (std::sregex_iterator at(compiled.log.begin(), compiled.log.end(), pattern); at != std::sregex_iterator(); ++at) {
    bytes = std::max(bytes, 0) + std::stoi((*at)[1]) + std::stoi((*at)[2]);
  }
  return bytes;
}

inline bool has_no_spill(const jit::Compiled& compiled) { return spilled_bytes(compiled) == 0; }

/// Returns the waits for products in machine code: the position of each wait, and the number of groups of products that
/// may still run after it.
inline std::vector<std::pair<std::size_t, char>> waits_for_products(std::string_view code) {
  constexpr std::string_view wait = "WARPGROUP.DEPBAR.LE gsb0, 0x";
  std::vector<std::pair<std::size_t, char>> waits;
  for (std::size_t at = 0; (at = code.find(wait, at)) != std::string_view::npos; ++at) {
    waits.emplace_back(at, code[at + wait.size()]);
  }
  return waits;
}

}  // namespace gdpa::gpu
