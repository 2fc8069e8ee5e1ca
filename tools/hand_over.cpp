// See hand_over.h.
#include "hand_over.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace gdpa::tool {
namespace {

namespace fs = std::filesystem;

/// Exits with 0 if gdpa, gdpa.bench and torch are installed. The test imports none of them, because importing torch
/// takes seconds. A package has a file. A folder with the same name may have none.
constexpr const char* has_packages = R"(
import importlib.machinery, importlib.util, sys
gdpa, torch = [importlib.util.find_spec(name) for name in ("gdpa", "torch")]
has_both = all(package and package.origin for package in (gdpa, torch))
sys.exit(not (has_both and importlib.machinery.PathFinder.find_spec("bench", gdpa.submodule_search_locations))))";

/// Returns the interpreters in the folder of this program, in the environment that contains the program
/// (<environment>/lib/pythonX.Y/site-packages/gdpa/bin), in the active environment, and on PATH.
std::vector<std::string> interpreters() {
  std::vector<fs::path> folders;
  std::error_code unknown;
  const fs::path folder = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  if (!unknown) {
    folders.push_back(folder);
    const fs::path packages = folder.parent_path().parent_path();
    if (packages.filename() == "site-packages") {
      folders.push_back(packages.parent_path().parent_path().parent_path() / "bin");
    }
  }
  if (const char* environment = std::getenv("VIRTUAL_ENV")) folders.push_back(fs::path(environment) / "bin");
  if (const char* path = std::getenv("PATH")) {
    std::istringstream stream(path);
    for (std::string part; std::getline(stream, part, ':');) folders.emplace_back(part);
  }
  std::vector<std::string> found;
  for (const fs::path& place : folders) {
    const std::string interpreter = (place / "python3").string();
    const bool is_new = std::find(found.begin(), found.end(), interpreter) == found.end();
    if (is_new && ::access(interpreter.c_str(), X_OK) == 0) found.push_back(interpreter);
  }
  return found;
}

bool has_gdpa(const std::string& interpreter) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(interpreter.c_str(), interpreter.c_str(), "-c", has_packages, nullptr);
    ::_exit(1);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

std::string hand_over_to_python(const std::vector<std::string>& arguments) {
  const std::vector<std::string> known = interpreters();
  for (const std::string& interpreter : known) {
    if (!has_gdpa(interpreter)) continue;
    std::vector<std::string> line = {interpreter, "-m", "gdpa.bench"};
    line.insert(line.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : line) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    ::execv(interpreter.c_str(), pointers.data());
  }
  return fmt::format("no Python with gdpa, gdpa-bench and PyTorch among {}", fmt::join(known, ", "));
}

}  // namespace gdpa::tool
