// The cache returns images without opening libnvrtc, and it never returns an image of another compiler, other options
// or another architecture. Each test runs in separate processes, because a process keeps a library open. The tests need
// NVRTC.
#include "jit/images.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "gdpa/error.h"

namespace gdpa::jit {
namespace {

namespace fs = std::filesystem;

const Source source = {"extern \"C\" __global__ void kernel(float* numbers) { numbers[threadIdx.x] += 1; }", "a test"};
const char* const architecture = "sm_80";

bool is_nvrtc_open() {
  for (const char* soname : {"libnvrtc.so.13", "libnvrtc.so.12"}) {
    if (dlopen(soname, RTLD_NOW | RTLD_NOLOAD) != nullptr) return true;
  }
  return false;
}

class JitImages : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("gdpa-images-test-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    if (!in_process([] { return !Nvrtc::open().path().empty(); })) GTEST_SKIP() << "this machine has no NVRTC";
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// Whether `work` returns true in a process of its own.
  static bool in_process(const std::function<bool()>& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        ::_exit(work() ? 0 : 1);
      } catch (const Error&) {
        ::_exit(2);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  Images images() const { return Images({folder_, 1 << 30}); }

  /// A cache on a machine without NVRTC.
  Images without_compiler() const {
    return Images({folder_, 1 << 30}, [] { return std::vector<std::string>(); });
  }

  bool compiles() const {
    return in_process([&] { return !images().find_or_compile(source, architecture).was_cached; });
  }

  fs::path folder_;
};

TEST_F(JitImages, AnImageThatIsCachedIsFoundWithoutOpeningNvrtc) {
  ASSERT_TRUE(compiles());
  EXPECT_TRUE(
      in_process([&] { return images().find_or_compile(source, architecture).was_cached && !is_nvrtc_open(); }));
}

TEST_F(JitImages, AnImageThatIsCachedIsFoundWhereNoNvrtcIsInstalled) {
  ASSERT_TRUE(compiles());
  EXPECT_TRUE(in_process([&] {
    const Cache::Result found = without_compiler().find_or_compile(source, architecture);
    return found.was_cached && !found.version.empty() && !is_nvrtc_open();
  }));
}

TEST_F(JitImages, TheVersionHasTheBuildNumber) {
  EXPECT_TRUE(in_process([&] {
    const std::string version = images().find_or_compile(source, architecture).version;
    return std::count(version.begin(), version.end(), '.') == 2 && version == Nvrtc::open().version();
  }));
}

TEST_F(JitImages, ANewNvrtcInTheSamePlaceIsRecognised) {
  // Two versions follow each other in one folder, as when a package is updated.
  const char* const oldest = std::getenv("GDPA_OLDEST_NVRTC");
  if (oldest == nullptr || *oldest == '\0') GTEST_SKIP() << "GDPA_OLDEST_NVRTC is not set";
  const fs::path newest = fs::path(Nvrtc::files().at(0)).parent_path();
  if (newest == fs::path(oldest)) GTEST_SKIP() << "this machine has only one NVRTC";
  const fs::path place = folder_.string() + "-library", answer = folder_.string() + "-answer";
  const auto version_in_place = [&](const fs::path& folder) {
    fs::remove(place);
    fs::create_directory_symlink(folder, place);
    EXPECT_TRUE(in_process([&] {
      ::setenv("GDPA_NVRTC", place.c_str(), 1);
      std::ofstream(answer) << images().find_or_compile(source, architecture).version;
      return true;
    }));
    std::string version;
    std::ifstream(answer) >> version;
    return version;
  };
  const std::string first = version_in_place(oldest);
  EXPECT_NE(version_in_place(newest), first);
  EXPECT_EQ(version_in_place(oldest), first);
  fs::remove(place);
  fs::remove(answer);
}

TEST_F(JitImages, AnotherArchitectureIsAnotherImage) {
  ASSERT_TRUE(compiles());
  EXPECT_TRUE(in_process([&] { return !images().find_or_compile(source, "sm_90a").was_cached; }));
}

TEST_F(JitImages, NoPathIsPartOfAnImagesKey) {
  ASSERT_TRUE(compiles());
  const std::string library = Nvrtc::files().at(0);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().extension() != ".gdpa") continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    EXPECT_EQ(content.find(fs::path(library).parent_path().string()), std::string::npos);
    EXPECT_NE(content.find("-arch=sm_80 -std=c++17"), std::string::npos) << "the options are part of the key";
  }
}

}  // namespace
}  // namespace gdpa::jit
