# A program or library says from which sources it was built, in a string that scripts/gpu-record looks for in its file.
# Each build computes the hash before it compiles anything, so what a failed build left in place keeps the older hash.
#     gdpa_says_its_sources(TARGET NAME "library|tests" FILE...)
# covers the entries of gpu_sources.txt in these groups, and the files. scripts/sources_hash.py computes the hash, for the
# build and for scripts/gpu-record alike. A build without Python 3 says so in place of the hash.
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
