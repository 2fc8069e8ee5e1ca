# Writes the C++ source OUTPUT for built_from.cmake, with NAME and the hash from scripts/sources_hash.py.
cmake_minimum_required(VERSION 3.25)
set(hash "unknown sources, because the build found no Python 3")
if(PYTHON)
  execute_process(COMMAND ${PYTHON} ${ROOT}/scripts/sources_hash.py ${GROUPS} ${FILES} OUTPUT_VARIABLE hash
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT
     "[[gnu::used]] static const char built_from[] = \"gdpa built from: @NAME@ @hash@\";\n" @ONLY)
