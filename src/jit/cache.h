// The kernel cache on disk: what NVRTC made, kept per user, keyed by everything that it depends on. An entry is trusted
// only after its whole key and its checksum have been compared; a damaged one is rebuilt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace gdpa::jit {

/// Where the cache lies and how large it may grow.
struct CacheSettings {
  std::filesystem::path folder;
  std::uintmax_t limit_bytes = std::uintmax_t{1} << 30;

  /// $GDPA_CACHE_DIR, else $XDG_CACHE_HOME/gdpa, else ~/.cache/gdpa; $GDPA_CACHE_LIMIT in bytes.
  static CacheSettings from_environment();
};

/// What lies in the folder, for `gdpa doctor`.
struct CacheUsage {
  std::int64_t entries = 0;
  std::uintmax_t bytes = 0;
  std::string problem;  ///< why nothing can be written there, or empty
};

/// A folder of entries, one file each. Safe for any number of processes and for a kill at any point: an entry appears
/// whole, by rename, or not at all. One object may be used by several threads.
class Cache {
 public:
  explicit Cache(CacheSettings settings);

  struct Result {
    std::string image;
    bool was_cached = false;
    std::string warning;  ///< why the entry could not be kept, or empty: the image is good either way
  };

  /// The image of `key`, built by `build` where the folder has none. Of many processes that ask for one key at a time,
  /// one builds and the others wait for its entry.
  Result find_or_build(std::string_view key, const std::function<std::string()>& build) const;

  /// Makes the folder if it can, and tries to write there.
  CacheUsage usage() const;

  const CacheSettings& settings() const { return settings_; }

 private:
  std::filesystem::path file_of(std::string_view key) const;
  void shrink() const;

  CacheSettings settings_;
};

}  // namespace gdpa::jit
