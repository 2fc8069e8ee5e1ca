// The NVRTCs that kernels are tested with, and what they made before.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "jit/cache.h"
#include "jit/nvrtc.h"

namespace gdpa::gpu {

inline std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Returns the newest NVRTC of this machine, and the oldest tested NVRTC in the folder GDPA_OLDEST_NVRTC. `make setup`
/// creates this folder. Throws Error without an NVRTC.
inline const std::vector<jit::Nvrtc>& compilers() {
  static const std::vector<jit::Nvrtc> both = [] {
    std::vector<jit::Nvrtc> found = {jit::Nvrtc::open()};
    const std::string oldest = environment("GDPA_OLDEST_NVRTC");
    if (oldest.empty()) return found;
    const std::string before = environment("GDPA_NVRTC");
    setenv("GDPA_NVRTC", oldest.c_str(), 1);
    found.push_back(jit::Nvrtc::open());
    before.empty() ? unsetenv("GDPA_NVRTC") : setenv("GDPA_NVRTC", before.c_str(), 1);
    return found;
  }();
  return both;
}

/// Returns make(), or its result of an earlier run with the same key and version. The results are in the folder
/// GDPA_TEST_KERNELS, which the Makefile sets. Without the variable, every run makes everything.
inline std::string made_before(std::string_view key, std::string_view version,
                               const std::function<std::string()>& make) {
  static const std::string folder = environment("GDPA_TEST_KERNELS");
  if (folder.empty()) return make();
  static const jit::Cache cache({folder, std::uintmax_t{2} << 30});
  return cache.find_or_build(key, version, make).image;
}

/// Compiles with the report of ptxas in the log, as nvrtc.compile() does, if no earlier run did.
inline jit::Compiled compile(const jit::Nvrtc& nvrtc, const jit::Source& source, const std::string& architecture) {
  const std::string options = "--ptxas-options=-v";
  std::string key =
      fmt::format("{} {}\n{}", fmt::join(jit::Nvrtc::base_options(architecture), " "), options, source.text);
  for (const jit::Header& header : jit::embedded_headers()) key += "\n// " + header.name + "\n" + header.text;
  const std::string made = made_before(key, nvrtc.version(), [&] {
    const jit::Compiled compiled = nvrtc.compile(source, architecture, {options});
    return compiled.log + '\0' + compiled.cubin;
  });
  const std::size_t end = made.find('\0');
  return {.cubin = made.substr(end + 1), .log = made.substr(0, end)};
}

}  // namespace gdpa::gpu
