// The kernel cache on disk: the images that NVRTC compiled, kept per user. The key of an image is everything that it
// depends on, except the version of the compiler, which is kept next to the key. An entry is trusted only after its
// whole key and its checksum have been compared; a damaged one is rebuilt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
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
    std::string version;  ///< of the compiler that made the image
    bool was_cached = false;
    std::string warning;  ///< why the entry could not be written, or empty: the image is good either way
  };

  /// The image that a compiler of this version ("13.2.86") makes of `key`. `build` makes it where the folder has none.
  /// Of many processes that ask for one key at a time, one builds and the others wait for its entry.
  Result find_or_build(std::string_view key, std::string_view version, const std::function<std::string()>& build) const;

  /// The image of `key` that the newest compiler made, or nothing where the folder has none of any version.
  std::optional<Result> find_newest(std::string_view key) const;

  /// A short text that was written under `key` by write_record, or nothing. Records are no kernels: they are not
  /// counted by usage().
  std::optional<std::string> read_record(std::string_view key) const;

  /// Writes a record. A folder that cannot be written is no error: the record is then missing.
  void write_record(std::string_view key, std::string_view text) const;

  /// Makes the folder if it can, and tries to write there.
  CacheUsage usage() const;

  const CacheSettings& settings() const { return settings_; }

 private:
  std::filesystem::path file_of(std::string_view key, std::string_view version) const;
  std::filesystem::path record_file_of(std::string_view key) const;
  std::optional<Result> find(std::string_view key, std::string_view version) const;
  void shrink() const;

  CacheSettings settings_;
};

}  // namespace gdpa::jit
