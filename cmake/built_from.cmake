# A program or library says from which sources it was built, in a string that scripts/gpu-record looks for in its file.
# The hash is made at every build before anything is compiled: what a build that failed left behind says the older one.
#     gdpa_says_its_sources(TARGET NAME "library|tests" FILE...)
# covers the entries of gpu_sources.txt in these groups, and the files beside.
function(gdpa_says_its_sources target name groups)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}_built_from.cpp)
  add_custom_target(${name}_built_from BYPRODUCTS ${source}
                    COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DNAME=${name} "-DGROUPS=${groups}"
                            "-DFILES=${ARGN}" -DOUTPUT=${source}
                            -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/write_built_from.cmake
                    VERBATIM)
  add_dependencies(${target} ${name}_built_from)
  target_sources(${target} PRIVATE ${source})
endfunction()
