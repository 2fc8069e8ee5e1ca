// The kernel cache on disk returns exactly the stored image, whatever happens to its folder and to the processes that
// share it.
#include "gdpa/error.h"
#include "jit/cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "definition/environment.h"
#include "gdpa/error.h"

namespace gdpa::jit {
namespace {

namespace fs = std::filesystem;

const std::string version = "13.0.88";

/// A folder of its own for each test, removed afterwards.
class JitCache : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("gdpa-cache-test-" + std::to_string(::getpid()) + "-" +
                                           testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Cache cache(std::uintmax_t limit = 1 << 30) const { return Cache({folder_, limit}); }

  std::vector<fs::path> files_ending(const std::string& suffix) const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().string().ends_with(suffix)) files.push_back(entry.path());
    }
    return files;
  }

  fs::path folder_;
};

std::string image_of(const std::string& key) {
  std::string image(100'000, '\0');
  std::mt19937 random(static_cast<unsigned>(std::hash<std::string>()(key)));
  for (char& byte : image) byte = static_cast<char>(random());
  return image;
}

/// Runs `work` in `count` processes and returns how many ended well.
int run_processes(int count, const std::function<bool(int)>& work) {
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(work(i) ? 0 : 1);
    children.push_back(child);
  }
  int good = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    good += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : 0;
  }
  return good;
}

TEST_F(JitCache, BuildsAnImageOnceAndReadsItAfterwards) {
  int builds = 0;
  const auto build = [&] {
    ++builds;
    return image_of("a");
  };
  const auto first = cache().find_or_build("a", version, build);
  const auto second = cache().find_or_build("a", version, build);
  EXPECT_FALSE(first.was_cached);
  EXPECT_TRUE(second.was_cached);
  EXPECT_EQ(builds, 1);
  EXPECT_EQ(first.image, image_of("a"));
  EXPECT_EQ(second.image, image_of("a"));
  EXPECT_EQ(first.warning, "");
}

TEST_F(JitCache, KeysThatDifferInOneCharacterAreDifferentEntries) {
  const auto cache = this->cache();
  cache.find_or_build("sm_80", version, [] { return "80"; });
  EXPECT_EQ(cache.find_or_build("sm_90", version, [] { return "90"; }).image, "90");
  EXPECT_EQ(cache.find_or_build("sm_80", version, [] { return "wrong"; }).image, "80");
}

TEST_F(JitCache, AnImageIsThatOfTheVersionThatIsAskedFor) {
  cache().find_or_build("a", "13.0.48", [] { return "48"; });
  EXPECT_EQ(cache().find_or_build("a", "13.0.88", [] { return "88"; }).image, "88");
  EXPECT_EQ(cache().find_or_build("a", "13.0.48", [] { return "wrong"; }).image, "48");
}

TEST_F(JitCache, TheNewestVersionOfAnImageIsFoundWithoutAVersion) {
  EXPECT_FALSE(cache().find_newest("a"));
  for (const char* made_by : {"13.9.1", "13.10.2", "12.9.86"}) {
    cache().find_or_build("a", made_by, [&] { return std::string(made_by); });
  }
  cache().find_or_build("b", "14.0.1", [] { return "b"; });
  const auto newest = cache().find_newest("a");
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->image, "13.10.2");
  EXPECT_EQ(newest->version, "13.10.2");
  EXPECT_TRUE(newest->was_cached);
}

TEST_F(JitCache, ADamagedEntryOfTheNewestVersionIsPassedOver) {
  for (const char* made_by : {"13.0.88", "13.2.86"}) {
    cache().find_or_build("a", made_by, [&] { return std::string(made_by); });
  }
  for (const fs::path& file : files_ending("13.2.86.gdpa")) fs::resize_file(file, 50);
  ASSERT_TRUE(cache().find_newest("a"));
  EXPECT_EQ(cache().find_newest("a")->image, "13.0.88");
}

TEST_F(JitCache, ARecordIsReadBackAndIsNoKernel) {
  EXPECT_EQ(cache().read_record("compiler"), std::nullopt);
  cache().write_record("compiler", "13.2.86");
  EXPECT_EQ(cache().read_record("compiler"), "13.2.86");
  EXPECT_EQ(cache().read_record("another compiler"), std::nullopt);
  EXPECT_EQ(cache().usage().entries, 0);
  fs::resize_file(files_ending(".record").at(0), 20);
  EXPECT_EQ(cache().read_record("compiler"), std::nullopt);
}

TEST_F(JitCache, ADamagedEntryIsRebuiltWhereverTheDamageLies) {
  cache().find_or_build("a", version, [] { return image_of("a"); });
  const fs::path file = files_ending(".gdpa").at(0);
  const auto size = fs::file_size(file);
  for (const std::uintmax_t position : {std::uintmax_t{0}, std::uintmax_t{9}, std::uintmax_t{30}, size / 2, size - 1}) {
    {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(static_cast<std::streamoff>(position));
      const int byte = stream.get();
      stream.seekp(static_cast<std::streamoff>(position));
      stream.put(static_cast<char>(byte ^ 1));
    }
    const auto result = cache().find_or_build("a", version, [] { return image_of("a"); });
    EXPECT_FALSE(result.was_cached) << "byte " << position;
    EXPECT_EQ(result.image, image_of("a"));
    EXPECT_TRUE(cache().find_or_build("a", version, [] { return image_of("a"); }).was_cached);
  }
}

TEST_F(JitCache, ATruncatedOrEmptyEntryIsRebuilt) {
  for (const double share : {.0, .0001, .5, .999}) {
    cache().find_or_build("a", version, [] { return image_of("a"); });
    const fs::path file = files_ending(".gdpa").at(0);
    fs::resize_file(file, static_cast<std::uintmax_t>(share * static_cast<double>(fs::file_size(file))));
    EXPECT_FALSE(cache().find_or_build("a", version, [] { return image_of("a"); }).was_cached) << share;
  }
}

TEST_F(JitCache, SixtyFourProcessesAgreeAndBuildEachImageOnce) {
  const fs::path builds = folder_.string() + "-builds";
  fs::remove(builds);
  const int good = run_processes(64, [&](int i) {
    bool is_right = true;
    for (int step = 0; step < 4; ++step) {
      const std::string key = "key " + std::to_string((i + step) % 4);
      const auto result = cache().find_or_build(key, version, [&] {
        std::ofstream(builds, std::ios::app) << 'x';
        return image_of(key);
      });
      is_right = is_right && result.image == image_of(key);
    }
    return is_right;
  });
  EXPECT_EQ(good, 64);
  EXPECT_EQ(fs::file_size(builds), 4U);
  fs::remove(builds);
}

TEST_F(JitCache, AKillAtAnyMomentLeavesNoWrongEntry) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const std::string key = "key " + std::to_string(round % 3);
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) {
        cache().find_or_build(key, version, [&] { return image_of(key); });
        for (const auto& file : files_ending(".gdpa")) fs::remove(file);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<>(200, 8000)(random)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_EQ(cache().find_or_build(key, version, [&] { return image_of(key); }).image, image_of(key))
        << "round " << round;
  }
}

TEST_F(JitCache, AFullDiskStillGivesTheImageAndSaysWhatToDo) {
  const int good = run_processes(1, [&](int) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{50'000, 50'000};  // limits the size of a file, like a full disk
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto result = cache().find_or_build("a", version, [] { return image_of("a"); });
    return result.image == image_of("a") && result.warning.find("GDPA_CACHE_DIR") != std::string::npos;
  });
  EXPECT_EQ(good, 1);
  EXPECT_TRUE(files_ending(".gdpa").empty());
  EXPECT_TRUE(files_ending(".part").empty());
  EXPECT_FALSE(cache().find_or_build("a", version, [] { return image_of("a"); }).was_cached);
}

TEST_F(JitCache, AFolderThatCannotBeWrittenStillGivesTheImage) {
  const Cache cache({"/proc/gdpa-cache", 1 << 30});  // nobody, root neither, can make a folder there
  const auto result = cache.find_or_build("a", version, [] { return image_of("a"); });
  EXPECT_EQ(result.image, image_of("a"));
  EXPECT_NE(result.warning.find("could not keep"), std::string::npos);
}

TEST_F(JitCache, GrowsToItsLimitAndDropsWhatWasUsedLongestAgo) {
  const auto cache = this->cache(450'000);
  for (const char* key : {"a", "b", "c", "d"}) {
    cache.find_or_build(key, version, [&] { return image_of(key); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(cache.find_or_build("a", version, [] { return image_of("a"); }).was_cached);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  cache.find_or_build("e", version, [] { return image_of("e"); });
  std::uintmax_t total = 0;
  for (const auto& file : files_ending(".gdpa")) total += fs::file_size(file);
  EXPECT_LE(total, 450'000U);
  EXPECT_TRUE(cache.find_or_build("a", version, [] { return image_of("a"); }).was_cached);
  EXPECT_FALSE(cache.find_or_build("b", version, [] { return image_of("b"); }).was_cached);
}

TEST(CacheSettings, TheLimitIsASizeWithAUnitAndAnotherTextIsRefused) {
  const auto limit_of = [](const char* text) {
    ::setenv("GDPA_CACHE_LIMIT", text, 1);
    return CacheSettings::from_environment().limit_bytes;
  };
  constexpr std::uintmax_t ki = 1024;
  const std::vector<std::pair<const char*, std::uintmax_t>> sizes = {{"", ki * ki * ki},
                                                                     {"0", 0},
                                                                     {"500000000", 500'000'000},
                                                                     {"7B", 7},
                                                                     {"1GB", 1'000'000'000},
                                                                     {"1gb", 1'000'000'000},
                                                                     {"2 kB", 2000},
                                                                     {"3MB", 3'000'000},
                                                                     {"1TB", 1'000'000'000'000},
                                                                     {"1K", ki},
                                                                     {"1.5G", ki * ki * ki * 3 / 2},
                                                                     {"512 MiB", 512 * ki * ki},
                                                                     {"2kib", 2 * ki},
                                                                     {"1T", ki * ki * ki * ki}};
  for (const auto& [text, bytes] : sizes) EXPECT_EQ(limit_of(text), bytes) << text;
  const std::string beyond_fp64(400, '9');
  for (const char* text : {beyond_fp64.c_str(), "-1", "many", "1e9", "1GBs", "1 G B", "GB", ".5G", "1,5G", "0x10",
                           "99999999999T", " 1G"}) {
    try {
      limit_of(text);
      ADD_FAILURE() << text << " is accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), "GDPA_CACHE_LIMIT: expected a size such as 500000000, 1.5G or 512 MiB, got \"" +
                                  std::string(text) + "\"; correct it");
    }
  }
  ::unsetenv("GDPA_CACHE_LIMIT");
}

TEST(Environment, AFlagIsOneOrZeroAndANumberIsWholeAndAboveZero) {
  const auto refusal_of = [](const char* text, auto read) -> std::string {
    ::setenv("GDPA_OF_THIS_TEST", text, 1);
    try {
      read("GDPA_OF_THIS_TEST");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto flag = [](const char* name) { return is_set(name); };
  const auto number = [](const char* name) { return positive_number(name, 5); };
  for (const char* text : {"", "0", "1"}) EXPECT_EQ(refusal_of(text, flag), "") << text;
  EXPECT_EQ(refusal_of("true", flag), "GDPA_OF_THIS_TEST: expected 1 or 0, got \"true\"; correct it");
  for (const char* text : {"", "1", "9223372036854775807"}) EXPECT_EQ(refusal_of(text, number), "") << text;
  for (const char* text : {"0", "-3", "2.5", "8 ", "8K", "9223372036854775808"}) {
    EXPECT_EQ(refusal_of(text, number),
              "GDPA_OF_THIS_TEST: expected a whole number above 0, got \"" + std::string(text) + "\"; correct it");
  }
  ::unsetenv("GDPA_OF_THIS_TEST");
  EXPECT_EQ(number("GDPA_OF_THIS_TEST"), 5);
  EXPECT_FALSE(flag("GDPA_OF_THIS_TEST"));
}

TEST_F(JitCache, SaysWhatItHoldsAndWhyItCannotBeWritten) {
  EXPECT_EQ(cache().usage().entries, 0);
  cache().find_or_build("a", version, [] { return image_of("a"); });
  cache().find_or_build("b", version, [] { return image_of("b"); });
  const KernelCache usage = cache().usage();
  EXPECT_EQ(usage.entries, 2);
  EXPECT_GT(usage.bytes, 200'000);
  EXPECT_EQ(usage.advice, "");
  EXPECT_TRUE(files_ending(".part").empty());
  EXPECT_NE(Cache({"/proc/gdpa-cache", 1 << 30}).usage().advice, "");
}

TEST_F(JitCache, ABuilderThatThrowsLeavesNoEntry) {
  EXPECT_THROW(cache().find_or_build("a", version, []() -> std::string { throw std::runtime_error("no compiler"); }),
               std::runtime_error);
  EXPECT_FALSE(cache().find_or_build("a", version, [] { return image_of("a"); }).was_cached);
}

}  // namespace
}  // namespace gdpa::jit
