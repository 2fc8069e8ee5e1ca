# What the folders of the C++ tests share.
find_package(GTest REQUIRED)
find_package(fmt REQUIRED)
include(GoogleTest)
find_program(LLD ld.lld REQUIRED)

# The programs link the objects of the library, so that they can also test hidden symbols of libgdpa. An edit of the
# library links about 100 programs again, which takes lld less than half the time of GNU ld. OPTIMISATION is an option of
# the compiler.
function(gdpa_test_options target optimisation)
  target_link_libraries(${target} PRIVATE gdpa_objects GTest::gtest_main)
  target_link_options(${target} PRIVATE -fuse-ld=lld)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/cpp ${PROJECT_SOURCE_DIR}/tests/gpu)
  target_compile_options(${target} PRIVATE ${optimisation})
endfunction()

# A test that computes for a long time.
#     gdpa_long_test_program(NAME OPTIMISATION SOURCE)
function(gdpa_long_test_program name optimisation source)
  add_executable(${name} ${source})
  gdpa_test_options(${name} ${optimisation})
endfunction()

# Compiling most tests takes longer than running them, so they are not optimised, and their common headers are compiled
# once. ccache needs the option -fpch-preprocess.
add_executable(precompiled ${PROJECT_SOURCE_DIR}/tests/precompiled.cpp)
gdpa_test_options(precompiled "-O0;-fpch-preprocess")
target_precompile_headers(precompiled PRIVATE ${PROJECT_SOURCE_DIR}/tests/precompiled.h)

#     gdpa_test_program(NAME SOURCE)
function(gdpa_test_program name source)
  add_executable(${name} ${source})
  gdpa_test_options(${name} "-O0;-fpch-preprocess")
  target_precompile_headers(${name} REUSE_FROM precompiled)
endfunction()

# Gives every test of the current folder a time limit, because a hang must be a failure. On two busy processors, the
# longest test of `make test` takes 100 s. Tests with the label `whole` run only in `make test-all`.
function(gdpa_limit_tests)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test ${tests})
    get_property(labels TEST ${test} PROPERTY LABELS)
    set(seconds 600)
    if(whole IN_LIST labels)
      set(seconds 7200)
    endif()
    set_property(TEST ${test} PROPERTY TIMEOUT ${seconds})
  endforeach()
endfunction()
