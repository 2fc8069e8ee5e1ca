// From a cubin to the instructions in it, by NVIDIA's own disassembler where one is installed.
#pragma once

#include <string>

namespace gdpa::tool {

/// The SASS of a cubin, by nvdisasm or cuobjdump. Throws MachineError that lists where they were looked for.
std::string disassemble(const std::string& image);

}  // namespace gdpa::tool
