// The kernel cache on disk, with the compiled images of one user. The key of an image contains all of its dependencies
// except the version of the compiler, which is stored next to the key. An entry is used only after a comparison of its
// whole key and its checksum. A damaged entry is rebuilt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "gdpa/system.h"

namespace gdpa::jit {

/// The folder and the size limit of the cache.
struct CacheSettings {
  std::filesystem::path folder;
  std::uintmax_t limit_bytes = std::uintmax_t{1} << 30;

  /// Returns $GDPA_CACHE_DIR, $XDG_CACHE_HOME/gdpa or ~/.cache/gdpa, in this order, and $GDPA_CACHE_LIMIT, a size such
  /// as 500000000, 1.5G or "512 MiB" (docs/compilation.md). Throws Error (value) for another text.
  static CacheSettings from_environment();
};

/// A folder with one file for each entry. Any number of processes may use it, and a process may be killed at any point,
/// because a rename creates each entry. Several threads may use one object.
class Cache {
 public:
  explicit Cache(CacheSettings settings);

  struct Result {
    std::string image;
    std::string version;  ///< the version of the compiler of the image
    bool was_cached = false;
    std::string warning;  ///< the reason why the entry was not written, or empty; the image is valid in both cases
  };

  /// Returns the image of `key` from a compiler of this version ("13.2.86"). Calls `build` if the folder has no such
  /// image. If several processes need the same key, one process builds the image and the others wait.
  Result find_or_build(std::string_view key, std::string_view version, const std::function<std::string()>& build) const;

  /// Returns the image of `key` from the newest compiler, or nothing if the folder has no image of `key`.
  std::optional<Result> find_newest(std::string_view key) const;

  /// Returns the short text that write_record wrote under `key`, or nothing. usage() does not count records.
  std::optional<std::string> read_record(std::string_view key) const;

  /// Writes a record. If the folder cannot be written, the record is missing, which is not an error.
  void write_record(std::string_view key, std::string_view text) const;

  /// Creates the folder if possible, and tests whether it can be written.
  KernelCache usage() const;

 private:
  std::filesystem::path file_of(std::string_view key, std::string_view version) const;
  std::filesystem::path record_file_of(std::string_view key) const;
  std::optional<Result> find(std::string_view key, std::string_view version) const;
  void shrink() const;

  CacheSettings settings_;
};

}  // namespace gdpa::jit
