// The machine code of a cubin as text.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "compilers.h"

namespace gdpa::gpu {

/// Returns NVIDIA's disassembler of the toolkit or of PyTorch's package triton, or an empty path.
inline std::filesystem::path disassembler() {
  for (const std::string& folder : {environment("GDPA_SITE_PACKAGES") + "/triton/backends/nvidia/bin",
                                    environment("CUDA_HOME") + "/bin", std::string("/usr/local/cuda/bin")}) {
    const std::filesystem::path path = folder + "/nvdisasm";
    if (std::filesystem::exists(path)) return path;
  }
  return {};
}

inline std::string disassembled(const std::string& cubin) {
  static std::atomic<int> count{0};
  const auto file = std::filesystem::temp_directory_path() / fmt::format("gdpa-{}-{}.cubin", getpid(), count++);
  std::ofstream(file, std::ios::binary).write(cubin.data(), static_cast<std::streamsize>(cubin.size()));
  const std::string command = fmt::format("'{}' -c '{}'", disassembler().string(), file.string());
  std::string text;
  if (FILE* const pipe = popen(command.c_str(), "r")) {
    std::array<char, 4096> part;
    for (std::size_t read = 0; (read = fread(part.data(), 1, part.size(), pipe)) > 0;) text.append(part.data(), read);
    pclose(pipe);
  }
  std::filesystem::remove(file);
  return text;
}

inline std::string disassemble(const std::string& cubin) {
  const std::string key = fmt::format("{}\n{}", disassembler().string(), cubin);
  return made_before(key, "1", [&] { return disassembled(cubin); });
}

}  // namespace gdpa::gpu
