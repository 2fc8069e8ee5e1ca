// See nvrtc.h.
#include "jit/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string_view>

#include "definition/environment.h"
#include "gdpa/error.h"

namespace gdpa::jit {

namespace {

constexpr const char* sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
constexpr const char* source_name = "gdpa_kernel.cu";

/// Returns the non-empty texts between the colons of a variable.
std::vector<std::string> folders_of(const char* name) {
  std::vector<std::string> folders;
  std::istringstream stream{std::string(variable(name))};
  for (std::string folder; std::getline(stream, folder, ':');) {
    if (!folder.empty()) folders.push_back(folder);
  }
  return folders;
}

/// Returns the folder of Python packages that contains this library, if any (<folder>/gdpa/lib/libgdpa.so), and the
/// folders of GDPA_SITE_PACKAGES.
std::vector<std::string> site_packages() {
  std::vector<std::string> result = folders_of("GDPA_SITE_PACKAGES");
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&site_packages), &info) != 0 && info.dli_fname != nullptr) {
    const std::filesystem::path library = info.dli_fname;
    result.insert(result.begin(), library.parent_path().parent_path().parent_path().string());
  }
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

void add_folder(std::vector<std::string>& files, const std::string& folder) {
  for (const char* soname : sonames) files.push_back(folder + "/" + soname);
}

/// Returns the files that may be a libnvrtc, in the order of preference. Most of them do not exist.
std::vector<std::string> candidates() {
  std::vector<std::string> files;
  for (const char* soname : sonames) {
    if (const std::string path = file_of_open(soname); !path.empty()) files.push_back(path);
  }
  for (const std::string& packages : site_packages()) {
    for (const char* lib : {"/nvidia/cu13/lib", "/nvidia/cuda_nvrtc/lib"}) add_folder(files, packages + lib);
  }
  for (const std::string& folder : folders_of("LD_LIBRARY_PATH")) add_folder(files, folder);
  for (const char* soname : sonames) {
    for (const std::string& path : known_to_the_loader(soname)) files.push_back(path);
  }
  for (const std::string_view toolkit : {variable("CUDA_HOME"), std::string_view("/usr/local/cuda")}) {
    if (!toolkit.empty()) add_folder(files, std::string(toolkit) + "/lib64");
  }
  return files;
}

void* open_first(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    if (void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

void* open_library() {
  if (void* const library = open_first(Nvrtc::files())) return library;
  if (const std::string_view named = variable("GDPA_NVRTC"); !named.empty()) {
    const char* const reason = dlerror();
    throw Error(ErrorKind::runtime,
                fmt::format("GDPA_NVRTC is \"{}\", expected libnvrtc.so or the folder that holds it; {}; correct it or "
                            "unset it",
                            named, reason == nullptr ? "it cannot be opened" : reason));
  }
  // A loader may have further search places, such as the RPATH of the program.
  if (void* const library = open_first({std::begin(sonames), std::end(sonames)})) return library;
  throw Error(
      ErrorKind::runtime,
      fmt::format("expected NVRTC, the compiler of GPU kernels (libnvrtc.so.13 or .12), but found none; install "
                  "PyTorch with CUDA or the CUDA toolkit, or set GDPA_NVRTC to the library. Tried:\n  {}",
                  fmt::join(candidates(), "\n  ")));
}

/// Returns line `number` of a text. The first line is 1.
std::string line_of(const std::string& text, int number) {
  std::istringstream stream(text);
  std::string line;
  for (int i = 0; i < number; ++i) std::getline(stream, line);
  return stream ? line : "";
}

/// Returns the generated line of the first error in a log: "line 12: ...".
std::string line_at_fault(const Source& source, const std::string& log) {
  static const std::regex pattern(R"((\S+)\((\d+)\): (?:catastrophic )?error)");
  std::smatch match;
  if (!std::regex_search(log, match, pattern)) return "";
  const int number = std::stoi(match[2]);
  const auto header = std::ranges::find(embedded_headers(), match[1].str(), &Header::name);
  const std::string& text = header == embedded_headers().end() ? source.text : header->text;
  return fmt::format("{}, line {}:\n    {}\n", match[1].str(), number, line_of(text, number));
}

}  // namespace

/// A program of NVRTC, which the destructor destroys.
class Nvrtc::Program {
 public:
  Program(const Nvrtc& nvrtc, const std::string& source, const std::vector<Header>& headers) : nvrtc_(nvrtc) {
    std::vector<const char*> names, texts;
    for (const Header& header : headers) {
      names.push_back(header.name.c_str());
      texts.push_back(header.text.c_str());
    }
    const int result = nvrtc.call("nvrtcCreateProgram", &program_, source.c_str(), source_name,
                                  static_cast<int>(names.size()), texts.data(), names.data());
    nvrtc.check(result, "creating a program");
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { nvrtc_.call("nvrtcDestroyProgram", &program_); }

  int compile(const std::vector<std::string>& options) const {
    std::vector<const char*> arguments;
    for (const std::string& option : options) arguments.push_back(option.c_str());
    return nvrtc_.call("nvrtcCompileProgram", program_, static_cast<int>(arguments.size()), arguments.data());
  }

  /// Returns what nvrtcGet<what> writes.
  std::string get(const std::string& what, const char* doing) const {
    std::size_t size = 0;
    nvrtc_.check(nvrtc_.call("nvrtcGet" + what + "Size", program_, &size), doing);
    std::string text(size, '\0');
    nvrtc_.check(nvrtc_.call("nvrtcGet" + what, program_, text.data()), doing);
    return text;
  }

 private:
  const Nvrtc& nvrtc_;
  void* program_ = nullptr;
};

Nvrtc Nvrtc::open() { return Nvrtc(open_library()); }

std::vector<std::string> Nvrtc::files() {
  const std::string named(variable("GDPA_NVRTC"));
  if (!named.empty() && !std::filesystem::is_directory(named)) return {named};
  std::vector<std::string> files;
  if (named.empty()) {
    files = candidates();
  } else {
    add_folder(files, named);
  }
  std::erase_if(files, [](const std::string& file) {
    std::error_code ignored;
    return !std::filesystem::exists(file, ignored);
  });
  return files;
}

std::vector<std::string> Nvrtc::base_options(const std::string& architecture) {
  return {"-arch=" + architecture, "-std=c++17", "-default-device"};
}

Nvrtc::Nvrtc(void* library) : library_(library) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) path_ = map->l_name;
  int minor = 0;
  check(call("nvrtcVersion", &major_, &minor), "returning its version");
  version_ = fmt::format("{}.{}", major_, minor);
  version_ = build_version();
}

template <class Result, class... Arguments>
Result Nvrtc::call(const std::string& name, Arguments... arguments) const {
  const auto function = reinterpret_cast<Result (*)(Arguments...)>(dlsym(library_, name.c_str()));
  if (function != nullptr) return function(arguments...);
  throw Error(ErrorKind::runtime, fmt::format("libnvrtc has no function {}; expected NVRTC 12 or later", name));
}

/// NVRTC's version function returns "13.2". Its PTX contains the whole version: "release 13.2, V13.2.86".
std::string Nvrtc::build_version() const {
  const Program program(*this, "__global__ void empty() {}", {});
  check(program.compile({}), "compiling an empty kernel");
  const std::string ptx = program.get("PTX", "reading PTX");
  static const std::regex pattern(R"(release [0-9.]+, V([0-9]+\.[0-9]+\.[0-9.]*[0-9]))");
  std::smatch match;
  return std::regex_search(ptx, match, pattern) ? match[1].str() : version_;
}

std::string Nvrtc::error(int result) const { return call<const char*>("nvrtcGetErrorString", result); }

void Nvrtc::check(int result, const char* doing) const {
  if (result == 0) return;
  throw Error(ErrorKind::runtime,
              fmt::format("NVRTC {} ({}) failed while {}: {}", version_, path_, doing, error(result)));
}

Compiled Nvrtc::compile(const Source& source, const std::string& architecture,
                        const std::vector<std::string>& options) const {
  const Program program(*this, source.text, embedded_headers());
  std::vector<std::string> all_options = base_options(architecture);
  all_options.insert(all_options.end(), options.begin(), options.end());
  const int result = program.compile(all_options);
  Compiled compiled;
  compiled.log = program.get("ProgramLog", "reading its log");
  compiled.log.erase(compiled.log.find_last_not_of('\0') + 1);
  if (result != 0) {
    throw Error(ErrorKind::runtime,
                fmt::format("NVRTC {} ({}) could not compile \"{}\" for {}: {}\n{}{}", version_, path_, source.subject,
                            architecture, error(result), line_at_fault(source, compiled.log), compiled.log));
  }
  compiled.cubin = program.get("CUBIN", "reading the cubin");
  return compiled;
}

}  // namespace gdpa::jit
