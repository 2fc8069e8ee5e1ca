# Each program or library contains the hash of its sources in a string. scripts/gpu-record searches the file for this
# string. Each build computes the hash before it compiles anything, so the files of an earlier build keep the earlier
# hash.
#     gdpa_says_its_sources(TARGET NAME "library|tests" FILE...)
# covers the entries of gpu_sources.txt in these groups, and the given files. scripts/sources_hash.py computes the hash
# for the build and for scripts/gpu-record. A build without Python 3 writes a note instead of the hash.
find_package(Python3 COMPONENTS Interpreter)

function(gdpa_says_its_sources target name groups)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}_built_from.cpp)
  add_custom_target(${name}_built_from BYPRODUCTS ${source}
                    COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DPYTHON=${Python3_EXECUTABLE} -DNAME=${name}
                            "-DGROUPS=${groups}" "-DFILES=${ARGN}" -DOUTPUT=${source}
                            -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/write_built_from.cmake
                    VERBATIM)
  add_dependencies(${target} ${name}_built_from)
  target_sources(${target} PRIVATE ${source})
endfunction()
