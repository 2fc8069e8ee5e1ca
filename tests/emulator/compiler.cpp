// The replacement of NVRTC (GDPA_NVRTC). It calls the real NVRTC in the folder GDPA_OLDEST_NVRTC, which the Makefile
// sets, or in the folder GDPA_EMULATED_NVRTC. It compiles to PTX only, and returns an image for the emulator (image.h)
// in place of a cubin.
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "image.h"

namespace {

std::string folder() {
  for (const char* const variable : {"GDPA_EMULATED_NVRTC", "GDPA_OLDEST_NVRTC"}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return value;
  }
  return {};
}

void* library() {
  static void* const opened = [] {
    const std::string file = folder() + "/libnvrtc.so.13";
    void* const found = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (found == nullptr) {
      std::fprintf(stderr,
                   "emulator: expected the folder of libnvrtc.so.13 in GDPA_EMULATED_NVRTC or GDPA_OLDEST_NVRTC, got "
                   "\"%s\"; `make setup` installs one, `make test-cpp` names it. %s\n",
                   folder().c_str(), dlerror());
      std::abort();
    }
    return found;
  }();
  return opened;
}

template <class... Arguments>
int call(const char* name, Arguments... arguments) {
  return reinterpret_cast<int (*)(Arguments...)>(dlsym(library(), name))(arguments...);
}

std::string image(void* program) {
  std::size_t bytes = 0;
  std::string ptx;
  int status = call("nvrtcGetPTXSize", program, &bytes);
  if (status == 0) {
    ptx.resize(bytes);
    status = call("nvrtcGetPTX", program, ptx.data());
  }
  if (status != 0) {
    std::fprintf(stderr, "emulator: expected PTX from NVRTC, got status %d\n", status);
    std::abort();
  }
  return gdpa::emulator::image_of(ptx);
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) { return call("nvrtcVersion", major, minor); }
const char* nvrtcGetErrorString(int status) {
  return reinterpret_cast<const char* (*)(int)>(dlsym(library(), "nvrtcGetErrorString"))(status);
}
int nvrtcCreateProgram(void** program, const char* source, const char* name, int headers, const char* const* texts,
                       const char* const* names) {
  return call("nvrtcCreateProgram", program, source, name, headers, texts, names);
}
int nvrtcDestroyProgram(void** program) { return call("nvrtcDestroyProgram", program); }
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  // A virtual architecture stops the compiler at PTX: compute_90a for sm_90a.
  std::vector<std::string> changed(options, options + count);
  std::vector<const char*> arguments;
  for (std::string& option : changed) {
    constexpr std::string_view real = "-arch=sm_";
    if (option.starts_with(real)) option.replace(0, real.size(), "-arch=compute_");
    arguments.push_back(option.c_str());
  }
  return call("nvrtcCompileProgram", program, count, static_cast<const char* const*>(arguments.data()));
}
int nvrtcGetProgramLogSize(void* program, std::size_t* bytes) { return call("nvrtcGetProgramLogSize", program, bytes); }
int nvrtcGetProgramLog(void* program, char* log) { return call("nvrtcGetProgramLog", program, log); }
int nvrtcGetPTXSize(void* program, std::size_t* bytes) { return call("nvrtcGetPTXSize", program, bytes); }
int nvrtcGetPTX(void* program, char* ptx) { return call("nvrtcGetPTX", program, ptx); }
int nvrtcGetCUBINSize(void* program, std::size_t* bytes) {
  *bytes = image(program).size();
  return 0;
}
int nvrtcGetCUBIN(void* program, char* bytes) {
  const std::string made = image(program);
  std::memcpy(bytes, made.data(), made.size());
  return 0;
}

}  // extern "C"
