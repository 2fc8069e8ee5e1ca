// A fixture for tests that compile kernels.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gdpa/error.h"
#include "jit/nvrtc.h"

namespace gdpa {

/// The tests of a suite share an empty kernel cache, which is removed after them. Without NVRTC they are skipped.
class WithCompiler : public testing::Test {
 protected:
  void SetUp() override {
    try {
      jit::Nvrtc::open();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  static void SetUpTestSuite() {
    folder() = std::filesystem::temp_directory_path() / ("gdpa-kernels-test-" + std::to_string(::getpid()));
    ::setenv("GDPA_CACHE_DIR", folder().c_str(), 1);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder()); }
  static std::filesystem::path& folder() {
    static std::filesystem::path path;
    return path;
  }
};

}  // namespace gdpa
