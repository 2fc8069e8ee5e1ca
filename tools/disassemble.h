// Disassembles a cubin with NVIDIA's disassembler, if it is installed.
#pragma once

#include <string>

namespace gdpa::tool {

/// Returns the SASS of a cubin from nvdisasm or cuobjdump. Throws MachineError with the searched folders.
std::string disassemble(const std::string& image);

}  // namespace gdpa::tool
