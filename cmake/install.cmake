# What is installed where. By CMake into a prefix: the library, its headers, find_package(gdpa) and the command line.
# Into a wheel (scikit-build-core): the same programs inside the Python package, with the operators and with the
# libraries that libgdpa links to, each once under its SONAME, found beside one another through $ORIGIN.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(NOT SKBUILD)
  set_target_properties(gdpa_command PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS gdpa_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(TARGETS gdpa EXPORT gdpaTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY include/gdpa DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

  # libgdpa shows nothing of what it links to, so the targets are the whole package.
  set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/gdpa)
  install(EXPORT gdpaTargets FILE gdpaConfig.cmake NAMESPACE gdpa:: DESTINATION ${package_folder})
  write_basic_package_version_file(gdpaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gdpaConfigVersion.cmake DESTINATION ${package_folder})

  # Against a sanitized library a stranger's program would have to be sanitized too.
  if(GDPA_DEVELOP AND NOT GDPA_SANITIZE)
    add_test(NAME installed_package
             COMMAND ${CMAKE_COMMAND} -DBUILD=${CMAKE_BINARY_DIR} -DWORK=${CMAKE_CURRENT_BINARY_DIR}/installed
                     -DCXX=${CMAKE_CXX_COMPILER} -P ${PROJECT_SOURCE_DIR}/tests/install/check.cmake)
  endif()
  return()
endif()

# A wheel holds no links: one file, named by the SONAME.
set_property(TARGET gdpa PROPERTY VERSION)
set_target_properties(gdpa gdpa_torch PROPERTIES INSTALL_RPATH "$ORIGIN")
set_target_properties(gdpa_command PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
install(TARGETS gdpa LIBRARY DESTINATION gdpa/lib NAMELINK_SKIP)
install(TARGETS gdpa_torch LIBRARY DESTINATION gdpa/lib)
install(TARGETS gdpa_command RUNTIME DESTINATION gdpa/bin)
configure_file(cmake/gdpa.in ${CMAKE_CURRENT_BINARY_DIR}/scripts/gdpa COPYONLY)
install(PROGRAMS ${CMAKE_CURRENT_BINARY_DIR}/scripts/gdpa DESTINATION ${SKBUILD_SCRIPTS_DIR})

install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES LIBRARIES $<TARGET_FILE:gdpa> RESOLVED_DEPENDENCIES_VAR carried
       PRE_INCLUDE_REGEXES "^libhwy\\." "^libtbb\\." PRE_EXCLUDE_REGEXES ".*")
  foreach(library IN LISTS carried)
    get_filename_component(soname ${library} NAME)
    file(REAL_PATH ${library} content)
    set(copy ${CMAKE_INSTALL_PREFIX}/gdpa/lib/${soname})
    message(STATUS "Installing: ${copy}")
    file(COPY_FILE ${content} ${copy} ONLY_IF_DIFFERENT)
  endforeach()
]])
