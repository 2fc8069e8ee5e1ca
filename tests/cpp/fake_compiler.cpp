// A replacement of NVRTC (GDPA_NVRTC) that compiles nothing. Every program becomes an image with the constants that
// gdpa reads from a cubin. The tests of the host code with the fake driver launch no kernel, so they need no compiler.
#include <cstddef>
#include <cstring>
#include <string>

#include "../emulator/image.h"

namespace {

/// The PTX of every program. Nvrtc reads its version from the comment.
const std::string ptx =
    "// release 13.2, V13.2.0\n"
    ".const .align 4 .u32 gdpa_threads = 256;\n"
    ".const .align 4 .u32 gdpa_shared_bytes = 1024;\n";

int copy(const std::string& text, char* to) {
  std::memcpy(to, text.c_str(), text.size() + 1);
  return 0;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 2;
  return 0;
}
const char* nvrtcGetErrorString(int) { return "an error of the fake compiler"; }
int nvrtcCreateProgram(std::string** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  // The image contains the source, so that different kernels have different images.
  *program = new std::string(gdpa::emulator::image_of(ptx + source));
  return 0;
}
int nvrtcDestroyProgram(std::string** program) {
  delete *program;
  return 0;
}
int nvrtcCompileProgram(std::string*, int, const char* const*) { return 0; }
int nvrtcGetProgramLogSize(std::string*, std::size_t* bytes) {
  *bytes = 1;
  return 0;
}
int nvrtcGetProgramLog(std::string*, char* log) { return copy("", log); }
int nvrtcGetPTXSize(std::string*, std::size_t* bytes) {
  *bytes = ptx.size() + 1;
  return 0;
}
int nvrtcGetPTX(std::string*, char* to) { return copy(ptx, to); }
int nvrtcGetCUBINSize(std::string* program, std::size_t* bytes) {
  *bytes = program->size();
  return 0;
}
int nvrtcGetCUBIN(std::string* program, char* image) {
  std::memcpy(image, program->data(), program->size());
  return 0;
}

}  // extern "C"
