# Writes the headers NAMES of FOLDER into the C++ source OUTPUT, which defines gdpa::jit::embedded_headers().
set(text "// Generated from kernels/ by embed.cmake.\n#include \"jit/headers.h\"\n\nnamespace gdpa::jit {\n\n")
string(APPEND text "const std::vector<Header>& embedded_headers() {\n  static const std::vector<Header> headers = {\n")
foreach(name IN LISTS NAMES)
  file(READ ${FOLDER}/${name} content)
  string(APPEND text "{\"${name}\", R\"gdpa(${content})gdpa\"},\n")
endforeach()
string(APPEND text "  };\n  return headers;\n}\n\n}  // namespace gdpa::jit\n")
file(WRITE ${OUTPUT} "${text}")
