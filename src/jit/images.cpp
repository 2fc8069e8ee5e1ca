// See images.h.
#include "jit/images.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "gdpa/version.h"

namespace gdpa::jit {
namespace {

/// Returns all dependencies of an image except the version of the compiler.
std::string cache_key(const std::string& source, const std::string& architecture) {
  std::string key =
      fmt::format("gdpa {}\n{}\n{}", GDPA_VERSION, fmt::join(Nvrtc::base_options(architecture), " "), source);
  for (const Header& header : embedded_headers()) key += "\n// " + header.name + "\n" + header.text;
  return key;
}

/// Returns the key of the record with the version of a copy of libnvrtc, or an empty string if the file does not exist.
/// A replaced file has another size or another modification time.
std::string record_key(const std::string& compiler_file) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(compiler_file, error);
  if (error) return {};
  return fmt::format("version of {}, {} bytes, changed at {} ns", file.string(), file_size(file, error),
                     last_write_time(file, error).time_since_epoch().count());
}

}  // namespace

Images::Images(CacheSettings settings, std::function<std::vector<std::string>()> compiler_files)
    : cache_(std::move(settings)), compiler_files_(std::move(compiler_files)) {}

const Nvrtc& Images::compiler() const {
  static const Nvrtc opened = Nvrtc::open();
  return opened;
}

std::optional<std::string> Images::installed_version() const {
  const std::lock_guard lock(mutex_);
  if (!version_) version_ = look_for_installed_version();
  return version_;
}

/// Reads the version from the cache's record of this copy of libnvrtc. The first process that uses a copy opens it and
/// writes the record.
std::optional<std::string> Images::look_for_installed_version() const {
  const std::vector<std::string> files = compiler_files_();
  if (files.empty()) return std::nullopt;
  if (const std::string key = record_key(files.front()); !key.empty()) {
    if (auto recorded = cache_.read_record(key)) return recorded;
  }
  const Nvrtc& opened = compiler();
  if (const std::string key = record_key(opened.path()); !key.empty()) cache_.write_record(key, opened.version());
  return opened.version();
}

Cache::Result Images::find_or_compile(const Source& source, const std::string& architecture) const {
  const std::string key = cache_key(source.text, architecture);
  std::optional<std::string> version = installed_version();
  if (!version) {
    if (auto result = cache_.find_newest(key)) return std::move(*result);
    version = compiler().version();
  }
  return cache_.find_or_build(key, *version, [&] { return compiler().compile(source, architecture).cubin; });
}

}  // namespace gdpa::jit
