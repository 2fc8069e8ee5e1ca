// See nvrtc.h.
#include "jit/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <regex>

#include "gdpa/error.h"
#include "jit/headers.h"

namespace gdpa::jit {

namespace {

constexpr const char* sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
constexpr const char* source_name = "gdpa_kernel.cu";

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// One attempt after another to open the library, and a record of those that failed.
class Search {
 public:
  void* loaded() {
    for (const char* soname : sonames) {
      if (void* library = dlopen(soname, RTLD_NOW | RTLD_NOLOAD)) return library;
    }
    return nullptr;
  }

  void* file(const std::string& path) {
    tried_.push_back(path);
    return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }

  void* folder(const std::string& path) {
    for (const char* soname : sonames) {
      if (void* library = file(path + "/" + soname)) return library;
    }
    return nullptr;
  }

  void* packages(const std::string& site_packages) {
    for (const char* lib : {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"}) {
      if (void* library = folder(site_packages + "/" + lib)) return library;
    }
    return nullptr;
  }

  void* loader_path() {
    for (const char* soname : sonames) {
      if (void* library = file(soname)) return library;
    }
    return nullptr;
  }

  std::string tried() const { return fmt::format("{}", fmt::join(tried_, "\n  ")); }

 private:
  std::vector<std::string> tried_;
};

/// The folder of Python packages that this library was installed into, if it was (<folder>/gdpa/lib/libgdpa.so), and
/// those of GDPA_SITE_PACKAGES.
std::vector<std::string> site_packages() {
  std::vector<std::string> result;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&site_packages), &info) != 0 && info.dli_fname != nullptr) {
    result.push_back(std::filesystem::path(info.dli_fname).parent_path().parent_path().parent_path().string());
  }
  const std::string folders = environment("GDPA_SITE_PACKAGES");
  std::size_t begin = 0;
  while (begin < folders.size()) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    if (end > begin) result.push_back(folders.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

void* named_by_user(const std::string& path) {
  Search search;
  void* const library = std::filesystem::is_directory(path) ? search.folder(path) : search.file(path);
  if (library != nullptr) return library;
  const char* const reason = dlerror();
  throw Error(ErrorKind::runtime,
              fmt::format("GDPA_NVRTC is \"{}\", expected libnvrtc.so or the folder that holds it; {}; correct it or "
                          "unset it",
                          path, reason == nullptr ? "it cannot be opened" : reason));
}

void* find() {
  if (const std::string path = environment("GDPA_NVRTC"); !path.empty()) return named_by_user(path);
  Search search;
  if (void* library = search.loaded()) return library;
  for (const std::string& folder : site_packages()) {
    if (void* library = search.packages(folder)) return library;
  }
  if (void* library = search.loader_path()) return library;
  for (const std::string& toolkit : {environment("CUDA_HOME"), std::string("/usr/local/cuda")}) {
    if (toolkit.empty()) continue;
    if (void* library = search.folder(toolkit + "/lib64")) return library;
  }
  throw Error(
      ErrorKind::runtime,
      fmt::format("expected NVRTC, the compiler of GPU kernels (libnvrtc.so.13 or .12), but found none; install "
                  "PyTorch with CUDA or the CUDA toolkit, or set GDPA_NVRTC to the library. Tried:\n  {}",
                  search.tried()));
}

template <typename Pointer>
void resolve(void* library, const char* name, Pointer& function) {
  function = reinterpret_cast<Pointer>(dlsym(library, name));
  if (function == nullptr) {
    throw Error(ErrorKind::runtime, fmt::format("libnvrtc has no function {}; expected NVRTC 12 or later", name));
  }
}

/// Line `number` of a text, from 1.
std::string line_of(const std::string& text, int number) {
  std::size_t begin = 0;
  for (int line = 1; line < number && begin != std::string::npos; ++line) {
    begin = text.find('\n', begin);
    if (begin != std::string::npos) ++begin;
  }
  return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
}

/// The generated line that the first error of a log points at: "line 12: ...".
std::string line_at_fault(const Source& source, const std::string& log) {
  static const std::regex pattern(R"((\S+)\((\d+)\): (?:catastrophic )?error)");
  std::smatch match;
  if (!std::regex_search(log, match, pattern)) return "";
  const int number = std::stoi(match[2]);
  const std::string& text = match[1] == source_name ? source.text : [&]() -> const std::string& {
    for (const Header& header : embedded_headers()) {
      if (match[1] == header.name) return header.text;
    }
    return source.text;
  }();
  return fmt::format("{}, line {}:\n    {}\n", match[1].str(), number, line_of(text, number));
}

}  // namespace

Nvrtc Nvrtc::open() { return Nvrtc(find()); }

Nvrtc::Nvrtc(void* library) {
  resolve(library, "nvrtcVersion", functions_.version);
  resolve(library, "nvrtcGetErrorString", functions_.error_string);
  resolve(library, "nvrtcCreateProgram", functions_.create);
  resolve(library, "nvrtcDestroyProgram", functions_.destroy);
  resolve(library, "nvrtcCompileProgram", functions_.compile);
  resolve(library, "nvrtcGetCUBINSize", functions_.cubin_size);
  resolve(library, "nvrtcGetCUBIN", functions_.cubin);
  resolve(library, "nvrtcGetProgramLogSize", functions_.log_size);
  resolve(library, "nvrtcGetProgramLog", functions_.log);
  check(functions_.version(&major_, &minor_), "asking for its version");
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) path_ = map->l_name;
}

void Nvrtc::check(int result, const char* doing) const {
  if (result == 0) return;
  throw Error(ErrorKind::runtime, fmt::format("NVRTC {}.{} ({}) failed while {}: {}", major_, minor_, path_, doing,
                                              functions_.error_string(result)));
}

Compiled Nvrtc::compile(const Source& source, const std::string& architecture,
                        const std::vector<std::string>& options) const {
  std::vector<const char*> names, texts;
  for (const Header& header : embedded_headers()) {
    names.push_back(header.name.c_str());
    texts.push_back(header.text.c_str());
  }
  Program raw = nullptr;
  check(functions_.create(&raw, source.text.c_str(), source_name, static_cast<int>(names.size()), texts.data(),
                          names.data()),
        "taking the source");
  const auto destroy = [this](Program* program) { functions_.destroy(program); };
  const std::unique_ptr<Program, decltype(destroy)> program(&raw, destroy);

  const std::string target = "-arch=" + architecture;
  std::vector<const char*> arguments = {target.c_str(), "-std=c++17", "-default-device"};
  for (const std::string& option : options) arguments.push_back(option.c_str());
  const int result = functions_.compile(raw, static_cast<int>(arguments.size()), arguments.data());

  Compiled compiled;
  std::size_t size = 0;
  check(functions_.log_size(raw, &size), "reading its log");
  compiled.log.resize(size);
  check(functions_.log(raw, compiled.log.data()), "reading its log");
  while (!compiled.log.empty() && compiled.log.back() == '\0') compiled.log.pop_back();
  if (result != 0) {
    throw Error(
        ErrorKind::runtime,
        fmt::format("NVRTC {}.{} ({}) could not compile \"{}\" for {}: {}\n{}{}", major_, minor_, path_, source.subject,
                    architecture, functions_.error_string(result), line_at_fault(source, compiled.log), compiled.log));
  }
  check(functions_.cubin_size(raw, &size), "reading the cubin");
  compiled.cubin.resize(size);
  check(functions_.cubin(raw, compiled.cubin.data()), "reading the cubin");
  return compiled;
}

}  // namespace gdpa::jit
