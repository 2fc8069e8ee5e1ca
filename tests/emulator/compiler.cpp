// The replacement of NVRTC (GDPA_NVRTC). It calls the real NVRTC in the folder GDPA_OLDEST_NVRTC, which the Makefile
// sets, or in the folder GDPA_EMULATED_NVRTC. It appends the PTX to each cubin, so that the emulator can run it.
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>

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
  return call("nvrtcCompileProgram", program, count, options);
}
int nvrtcGetProgramLogSize(void* program, std::size_t* bytes) { return call("nvrtcGetProgramLogSize", program, bytes); }
int nvrtcGetProgramLog(void* program, char* log) { return call("nvrtcGetProgramLog", program, log); }
int nvrtcGetPTXSize(void* program, std::size_t* bytes) { return call("nvrtcGetPTXSize", program, bytes); }
int nvrtcGetPTX(void* program, char* ptx) { return call("nvrtcGetPTX", program, ptx); }
int nvrtcGetCUBINSize(void* program, std::size_t* bytes) {
  std::size_t ptx = 0;
  const int status = call("nvrtcGetCUBINSize", program, bytes);
  if (status != 0) return status;
  const int second = call("nvrtcGetPTXSize", program, &ptx);
  *bytes += ptx;
  return second;
}
int nvrtcGetCUBIN(void* program, char* image) {
  std::size_t bytes = 0;
  const int status = call("nvrtcGetCUBINSize", program, &bytes);
  if (status != 0) return status;
  const int second = call("nvrtcGetCUBIN", program, image);
  return second != 0 ? second : call("nvrtcGetPTX", program, image + bytes);
}

}  // extern "C"
