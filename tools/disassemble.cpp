// See disassemble.h.
#include "disassemble.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "command.h"
#include "gdpa/system.h"

namespace gdpa::tool {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> split(const std::string& folders) {
  std::vector<std::string> parts;
  std::istringstream stream(folders);
  for (std::string part; std::getline(stream, part, ':');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::string environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

/// Returns the folders of PATH, of the CUDA toolkit, and of PyTorch's package triton.
std::vector<std::string> folders() {
  std::vector<std::string> result = split(environment("PATH"));
  if (const std::string home = environment("CUDA_HOME"); !home.empty()) result.push_back(home + "/bin");
  result.emplace_back("/usr/local/cuda/bin");
  std::vector<std::string> packages = split(environment("GDPA_SITE_PACKAGES"));
  packages.push_back(fs::path(inspect_system().location).parent_path().parent_path().parent_path().string());
  for (const std::string& folder : packages) result.push_back(folder + "/triton/backends/nvidia/bin");
  return result;
}

/// Returns a command line to which the name of the cubin is appended.
std::string find_disassembler() {
  const std::vector<std::string> looked = folders();
  for (const auto& [program, option] : {std::pair{"nvdisasm", "--print-code"}, std::pair{"cuobjdump", "--dump-sass"}}) {
    for (const std::string& folder : looked) {
      const fs::path path = fs::path(folder) / program;
      if (::access(path.c_str(), X_OK) == 0) return fmt::format("'{}' {}", path.string(), option);
    }
  }
  throw MachineError(
      fmt::format("--dump-sass: expected nvdisasm or cuobjdump, of the CUDA toolkit or of PyTorch's package triton, "
                  "found none; install one, or set CUDA_HOME or PATH. Looked in:\n  {}",
                  fmt::join(looked, "\n  ")));
}

/// A file that the destructor removes.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) : path_((fs::temp_directory_path() / "gdpa-XXXXXX").string()) {
    const int descriptor = ::mkstemp(path_.data());
    if (descriptor >= 0) ::close(descriptor);
    std::ofstream file(path_, std::ios::binary);
    file << content;
    if (descriptor < 0 || !file.flush()) throw MachineError(fmt::format("{}: the file cannot be written", path_));
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { ::unlink(path_.c_str()); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

std::string disassemble(const std::string& image) {
  const TemporaryFile cubin(image);
  const std::string command = fmt::format("{} '{}'", find_disassembler(), cubin.path());
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw MachineError(fmt::format("{}: the program cannot be started", command));
  std::string text;
  std::array<char, 65536> part{};
  for (std::size_t size = 0; (size = std::fread(part.data(), 1, part.size(), pipe)) > 0;)
    text.append(part.data(), size);
  if (::pclose(pipe) != 0) throw MachineError(fmt::format("{}: the program failed", command));
  return text;
}

}  // namespace gdpa::tool
