// See nvrtc.h.
#include "jit/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <sstream>

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

/// Returns the non-empty texts between separators.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

/// Returns the folder of Python packages that contains this library, if any (<folder>/gdpa/lib/libgdpa.so), and the
/// folders of GDPA_SITE_PACKAGES.
std::vector<std::string> site_packages() {
  std::vector<std::string> result;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&site_packages), &info) != 0 && info.dli_fname != nullptr) {
    result.push_back(std::filesystem::path(info.dli_fname).parent_path().parent_path().parent_path().string());
  }
  for (const std::string& folder : split(environment("GDPA_SITE_PACKAGES"), ':')) result.push_back(folder);
  return result;
}

/// Returns the files of a soname from the cache of `ldconfig`, which contains the paths as C strings. Opening the
/// soname would give the same file, but it would also load the library.
std::vector<std::string> known_to_the_loader(const std::string& soname) {
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string name = "/" + soname + '\0';
  std::vector<std::string> paths;
  for (std::size_t at = content.find(name); at != std::string::npos; at = content.find(name, at + 1)) {
    const std::size_t begin = content.rfind('\0', at) + 1;
    paths.push_back(content.substr(begin, at + name.size() - 1 - begin));
  }
  return paths;
}

/// Returns the file of a library that the process has already opened, or an empty string.
std::string file_of_open(const char* soname) {
  void* const library = dlopen(soname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {};
  link_map* map = nullptr;
  const std::string file = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "";
  dlclose(library);
  return file;
}

/// Collects files that exist.
class Search {
 public:
  void file(const std::string& path) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) found_.push_back(path);
    tried_.push_back(path);
  }

  void folder(const std::string& path) {
    for (const char* soname : sonames) file(path + "/" + soname);
  }

  void everywhere() {
    for (const char* soname : sonames) {
      if (const std::string path = file_of_open(soname); !path.empty()) file(path);
    }
    for (const std::string& packages : site_packages()) {
      for (const char* lib : {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"}) folder(packages + "/" + lib);
    }
    for (const std::string& path : split(environment("LD_LIBRARY_PATH"), ':')) folder(path);
    for (const char* soname : sonames) {
      for (const std::string& path : known_to_the_loader(soname)) file(path);
    }
    for (const std::string& toolkit : {environment("CUDA_HOME"), std::string("/usr/local/cuda")}) {
      if (!toolkit.empty()) folder(toolkit + "/lib64");
    }
  }

  const std::vector<std::string>& found() const { return found_; }
  const std::vector<std::string>& tried() const { return tried_; }

 private:
  std::vector<std::string> found_;
  std::vector<std::string> tried_;
};

Search search_everywhere() {
  Search search;
  search.everywhere();
  return search;
}

void* open_first(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    if (void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

void* open_named_by_user(const std::string& path) {
  if (void* const library = open_first(Nvrtc::files())) return library;
  const char* const reason = dlerror();
  throw Error(ErrorKind::runtime,
              fmt::format("GDPA_NVRTC is \"{}\", expected libnvrtc.so or the folder that holds it; {}; correct it or "
                          "unset it",
                          path, reason == nullptr ? "it cannot be opened" : reason));
}

void* open_library() {
  if (const std::string path = environment("GDPA_NVRTC"); !path.empty()) return open_named_by_user(path);
  const Search search = search_everywhere();
  if (void* const library = open_first(search.found())) return library;
  // A loader may have further search places, such as the RPATH of the program.
  if (void* const library = open_first({std::begin(sonames), std::end(sonames)})) return library;
  throw Error(
      ErrorKind::runtime,
      fmt::format("expected NVRTC, the compiler of GPU kernels (libnvrtc.so.13 or .12), but found none; install "
                  "PyTorch with CUDA or the CUDA toolkit, or set GDPA_NVRTC to the library. Tried:\n  {}",
                  fmt::join(search.tried(), "\n  ")));
}

template <typename Pointer>
void resolve(void* library, const char* name, Pointer& function) {
  function = reinterpret_cast<Pointer>(dlsym(library, name));
  if (function == nullptr) {
    throw Error(ErrorKind::runtime, fmt::format("libnvrtc has no function {}; expected NVRTC 12 or later", name));
  }
}

/// Returns line `number` of a text. The first line is 1.
std::string line_of(const std::string& text, int number) {
  std::size_t begin = 0;
  for (int line = 1; line < number && begin != std::string::npos; ++line) {
    begin = text.find('\n', begin);
    if (begin != std::string::npos) ++begin;
  }
  return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
}

/// Returns the generated line of the first error in a log: "line 12: ...".
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

Nvrtc Nvrtc::open() { return Nvrtc(open_library()); }

std::vector<std::string> Nvrtc::files() {
  const std::string named = environment("GDPA_NVRTC");
  if (named.empty()) return search_everywhere().found();
  if (!std::filesystem::is_directory(named)) return {named};
  Search search;
  search.folder(named);
  return search.found();
}

std::vector<std::string> Nvrtc::base_options(const std::string& architecture) {
  return {"-arch=" + architecture, "-std=c++17", "-default-device"};
}

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
  resolve(library, "nvrtcGetPTXSize", functions_.ptx_size);
  resolve(library, "nvrtcGetPTX", functions_.ptx);
  int minor = 0;
  check(functions_.version(&major_, &minor), "returning its version");
  version_ = fmt::format("{}.{}", major_, minor);
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) path_ = map->l_name;
  version_ = build_version();
}

/// NVRTC's version function returns "13.2". Its PTX contains the whole version: "release 13.2, V13.2.86".
std::string Nvrtc::build_version() const {
  Program raw = nullptr;
  check(functions_.create(&raw, "__global__ void empty() {}", source_name, 0, nullptr, nullptr), "creating a program");
  const auto destroy = [this](Program* program) { functions_.destroy(program); };
  const std::unique_ptr<Program, decltype(destroy)> program(&raw, destroy);
  check(functions_.compile(raw, 0, nullptr), "compiling an empty kernel");
  std::size_t size = 0;
  check(functions_.ptx_size(raw, &size), "reading PTX");
  std::string ptx(size, '\0');
  check(functions_.ptx(raw, ptx.data()), "reading PTX");
  static const std::regex pattern(R"(release [0-9.]+, V([0-9]+\.[0-9]+\.[0-9.]*[0-9]))");
  std::smatch match;
  return std::regex_search(ptx, match, pattern) ? match[1].str() : version_;
}

void Nvrtc::check(int result, const char* doing) const {
  if (result == 0) return;
  throw Error(ErrorKind::runtime, fmt::format("NVRTC {} ({}) failed while {}: {}", version_, path_, doing,
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
        "creating a program");
  const auto destroy = [this](Program* program) { functions_.destroy(program); };
  const std::unique_ptr<Program, decltype(destroy)> program(&raw, destroy);

  std::vector<std::string> all_options = base_options(architecture);
  all_options.insert(all_options.end(), options.begin(), options.end());
  std::vector<const char*> arguments;
  for (const std::string& option : all_options) arguments.push_back(option.c_str());
  const int result = functions_.compile(raw, static_cast<int>(arguments.size()), arguments.data());

  Compiled compiled;
  std::size_t size = 0;
  check(functions_.log_size(raw, &size), "reading its log");
  compiled.log.resize(size);
  check(functions_.log(raw, compiled.log.data()), "reading its log");
  while (!compiled.log.empty() && compiled.log.back() == '\0') compiled.log.pop_back();
  if (result != 0) {
    throw Error(ErrorKind::runtime, fmt::format("NVRTC {} ({}) could not compile \"{}\" for {}: {}\n{}{}", version_,
                                                path_, source.subject, architecture, functions_.error_string(result),
                                                line_at_fault(source, compiled.log), compiled.log));
  }
  check(functions_.cubin_size(raw, &size), "reading the cubin");
  compiled.cubin.resize(size);
  check(functions_.cubin(raw, compiled.cubin.data()), "reading the cubin");
  return compiled;
}

}  // namespace gdpa::jit
