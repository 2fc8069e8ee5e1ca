// Compiled images of sources, from the kernel cache on disk or from NVRTC. Only a cache miss opens libnvrtc.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "jit/cache.h"
#include "jit/nvrtc.h"

namespace gdpa::jit {

/// A kernel cache with the compiler that fills it. Several threads may use one object.
class Images {
 public:
  /// `compiler_files` lists the copies of libnvrtc that may be opened, in the order of preference.
  explicit Images(
      CacheSettings settings, std::function<std::vector<std::string>()> compiler_files = [] { return Nvrtc::files(); });

  /// Returns the image of a source for an architecture ("sm_90a").
  ///
  /// The key of the cache is the version of gdpa, the options of the compiler, the architecture, the source and all
  /// headers. If several images have the same key, the image of the installed NVRTC's version is used. Without an
  /// installed NVRTC, the image of the newest version is used. Throws Error (runtime) if the compilation of a missing
  /// image is impossible.
  Cache::Result find_or_compile(const Source& source, const std::string& architecture) const;

 private:
  const Nvrtc& compiler() const;
  std::optional<std::string> installed_version() const;
  std::optional<std::string> look_for_installed_version() const;

  Cache cache_;
  std::function<std::vector<std::string>()> compiler_files_;
  mutable std::mutex mutex_;
  mutable std::optional<std::string> version_;  ///< the version of the installed NVRTC, once it is known
};

}  // namespace gdpa::jit
