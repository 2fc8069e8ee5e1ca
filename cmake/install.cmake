# The installation rules. `cmake --install` installs the library, its headers, find_package(gdpa) and the command line
# into a prefix. A wheel (scikit-build-core) contains the library and the command line inside the Python package, with
# the operators and with the libraries that libgdpa links to. Each of these libraries is stored once under its SONAME,
# and the loader finds it through $ORIGIN.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(NOT SKBUILD)
  set_target_properties(gdpa_command PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS gdpa_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(TARGETS gdpa EXPORT gdpaTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY include/gdpa DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

  # libgdpa hides the libraries that it links to, so the package needs no find_dependency().
  set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/gdpa)
  install(EXPORT gdpaTargets FILE gdpaConfig.cmake NAMESPACE gdpa:: DESTINATION ${package_folder})
  write_basic_package_version_file(gdpaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gdpaConfigVersion.cmake DESTINATION ${package_folder})

  # A program that links to a sanitized library must be sanitized too, so this test needs an ordinary library.
  if(GDPA_DEVELOP AND NOT GDPA_SANITIZE)
    add_test(NAME installed_package
             COMMAND ${CMAKE_COMMAND} -DBUILD=${CMAKE_BINARY_DIR} -DWORK=${CMAKE_CURRENT_BINARY_DIR}/installed
                     -DCXX=${CMAKE_CXX_COMPILER} -P ${PROJECT_SOURCE_DIR}/tests/install/check.cmake)
  endif()
  return()
endif()

# A wheel cannot contain symbolic links, so the library is one file with the SONAME as its name.
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
       PRE_INCLUDE_REGEXES "^libfmt\\." "^libhwy\\." "^libtbb\\." PRE_EXCLUDE_REGEXES ".*")
  foreach(library IN LISTS carried)
    get_filename_component(soname ${library} NAME)
    file(REAL_PATH ${library} content)
    set(copy ${CMAKE_INSTALL_PREFIX}/gdpa/lib/${soname})
    message(STATUS "Installing: ${copy}")
    file(COPY_FILE ${content} ${copy} ONLY_IF_DIFFERENT)
  endforeach()
]])
