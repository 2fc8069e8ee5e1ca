// Compiled images of sources: from the kernel cache on disk, else from NVRTC. Only a miss opens libnvrtc.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "jit/cache.h"
#include "jit/nvrtc.h"

namespace gdpa::jit {

/// A kernel cache together with the compiler that fills it. One object may be used by several threads.
class Images {
 public:
  /// `compiler_files` lists the copies of libnvrtc that may be opened, the preferred one first.
  explicit Images(
      CacheSettings settings, std::function<std::vector<std::string>()> compiler_files = [] { return Nvrtc::files(); });

  /// The image of a source for an architecture ("sm_90a").
  ///
  /// The key of the cache is the version of gdpa, the options of the compiler, the architecture, the source and all
  /// headers. Of the images of one key, that of the installed NVRTC's version is taken. Where no NVRTC is installed,
  /// the image of the newest version is taken. Throws Error (runtime) where an image must be compiled and cannot be.
  Cache::Result find_or_compile(const Source& source, const std::string& architecture) const;

 private:
  const Nvrtc& compiler() const;
  std::optional<std::string> installed_version() const;
  std::optional<std::string> look_for_installed_version() const;

  Cache cache_;
  std::function<std::vector<std::string>()> compiler_files_;
  mutable std::mutex mutex_;
  mutable std::optional<std::string> version_;  ///< of the installed NVRTC, once it is known
};

}  // namespace gdpa::jit
