// The NVRTCs that kernels are tested with.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "disassemble.h"
#include "jit/nvrtc.h"

namespace gdpa::cuda {

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

}  // namespace gdpa::cuda
