// The image of a kernel for the emulator: an ELF file with what gdpa reads from a cubin, followed by the PTX.
#pragma once

#include <string>

namespace gdpa::emulator {

/// Returns the image of a translation unit. The ELF file has the constants of the PTX as symbols, and a section with
/// the size of the static shared memory. It has no machine code, because the emulator runs the PTX. Without ptxas,
/// NVRTC takes half the time.
std::string image_of(const std::string& ptx);

/// Returns the PTX of an image. Throws std::runtime_error if no PTX follows the ELF file, as in a cubin for a GPU.
const char* ptx_of(const void* image);

}  // namespace gdpa::emulator
