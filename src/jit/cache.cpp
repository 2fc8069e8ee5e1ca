// The kernel cache on disk; see cache.h. An entry is: magic, version of this layout, length of key, length of image,
// checksum of both, key, image. The key in the file ends with the version of the compiler. The name of the file is the
// hash of the key without that version, and the version in clear text, so that all versions of a key can be listed.
#include "jit/cache.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <regex>
#include <system_error>
#include <vector>

#include "definition/environment.h"

namespace gdpa::jit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view entry_suffix = ".gdpa";
constexpr std::string_view record_suffix = ".record";
constexpr std::string_view unfinished_suffix = ".part";
constexpr auto unfinished_lifetime = std::chrono::hours(1);
constexpr double share_kept_when_full = .8;

struct EntryHeader {
  std::array<char, 8> magic = {'g', 'd', 'p', 'a', 'k', 'e', 'r', 'n'};
  std::uint64_t layout = 1;
  std::uint64_t key_bytes = 0;
  std::uint64_t image_bytes = 0;
  std::uint64_t checksum = 0;
};

EntryHeader header_of(std::string_view key, std::string_view image) {
  return {.key_bytes = key.size(),
          .image_bytes = image.size(),
          .checksum = XXH3_64bits_withSeed(image.data(), image.size(), XXH3_64bits(key.data(), key.size()))};
}

/// Returns the image of a complete and undamaged entry of `key`, or nothing. Notes the time for shrink().
std::optional<std::string> read(const fs::path& file, std::string_view key) {
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  if (!stream) return std::nullopt;
  std::string content(static_cast<std::size_t>(std::max<std::streamoff>(stream.tellg(), 0)), '\0');
  stream.seekg(0);
  if (!stream.read(content.data(), static_cast<std::streamsize>(content.size()))) return std::nullopt;
  const std::size_t begin = sizeof(EntryHeader) + key.size();
  if (content.size() < begin) return std::nullopt;
  const std::string_view image = std::string_view(content).substr(begin);
  const EntryHeader expected = header_of(key, image);
  if (std::memcmp(content.data(), &expected, sizeof expected) != 0) return std::nullopt;
  if (content.compare(sizeof expected, key.size(), key) != 0) return std::nullopt;
  std::error_code ignored;
  fs::last_write_time(file, fs::file_time_type::clock::now(), ignored);
  return std::string(image);
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

using File = std::unique_ptr<std::FILE, Close>;

/// Writes a temporary file, forces it to the disk and renames it, so readers see either the old or the new entry.
/// Returns the reason for a failure, or an empty string.
std::string write(const fs::path& file, std::string_view key, std::string_view image) {
  static std::atomic<unsigned> counter = 0;
  const fs::path unfinished = fmt::format("{}.{}.{}{}", file.string(), ::getpid(), counter++, unfinished_suffix);
  const EntryHeader header = header_of(key, image);
  const auto is_written = [&] {
    const File out(std::fopen(unfinished.c_str(), "wbxe"));
    const auto put = [&](const void* bytes, std::size_t size) {
      return std::fwrite(bytes, 1, size, out.get()) == size;
    };
    return out && put(&header, sizeof header) && put(key.data(), key.size()) && put(image.data(), image.size()) &&
           std::fflush(out.get()) == 0 && ::fsync(::fileno(out.get())) == 0;
  };
  if (is_written() && ::rename(unfinished.c_str(), file.c_str()) == 0) return {};
  const std::string problem = std::strerror(errno);
  ::unlink(unfinished.c_str());
  return fmt::format(
      "the kernel cache could not keep {}: {}; free some space or set GDPA_CACHE_DIR to a folder that "
      "can be written",
      file.string(), problem);
}

std::string hexadecimal(std::string_view key) {
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string with_version(std::string_view key, std::string_view version) {
  return fmt::format("{}\nNVRTC {}", key, version);
}

bool ends_with(const fs::path& file, std::string_view suffix) {
  return std::string_view(file.native()).ends_with(suffix);
}

/// Returns the bytes of a size, or nothing: a number, perhaps with a fraction, and a unit in any case. As in the tools
/// of GNU, K and KiB are 1024 bytes and KB is 1000.
std::optional<std::uintmax_t> bytes_of(std::string_view text) {
  static const std::regex pattern(R"((\d+(?:\.\d*)?) *(?:([KMGT])(I?B)?|B)?)", std::regex::icase);
  std::cmatch match;
  if (!std::regex_match(text.begin(), text.end(), match, pattern)) return std::nullopt;
  double number = 0;
  if (std::from_chars(match[1].first, match[1].second, number).ec != std::errc()) return std::nullopt;
  constexpr std::string_view prefixes = "KkMmGgTt";
  const auto power = match[2].matched ? prefixes.find(*match[2].first) / 2 + 1 : 0;
  number *= std::pow(match.length(3) == 1 ? 1000 : 1024, power);
  constexpr double most = 0x1p63;
  return number < most ? std::optional(static_cast<std::uintmax_t>(number)) : std::nullopt;
}

struct StoredFile {
  fs::path file;
  fs::file_time_type used;
  std::uintmax_t bytes;
};

/// The files of the folder, without those that another process removes at the same time.
std::vector<StoredFile> files_of(const fs::path& folder) {
  std::vector<StoredFile> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    StoredFile stored{it->path(), it->last_write_time(gone), it->file_size(gone)};
    if (!gone) files.push_back(std::move(stored));
  }
  return files;
}

}  // namespace

CacheSettings CacheSettings::from_environment() {
  CacheSettings settings;
  if (const auto folder = variable("GDPA_CACHE_DIR"); !folder.empty()) {
    settings.folder = folder;
  } else if (const auto base = variable("XDG_CACHE_HOME"); !base.empty()) {
    settings.folder = fs::path(base) / "gdpa";
  } else {
    settings.folder = fs::path(variable("HOME")) / ".cache" / "gdpa";
  }
  if (const auto limit = variable("GDPA_CACHE_LIMIT"); !limit.empty()) {
    const std::optional<std::uintmax_t> bytes = bytes_of(limit);
    if (!bytes) refuse_variable("GDPA_CACHE_LIMIT", "a size such as 500000000, 1.5G or 512 MiB");
    settings.limit_bytes = *bytes;
  }
  return settings;
}

Cache::Cache(CacheSettings settings) : settings_(std::move(settings)) {}

fs::path Cache::file_of(std::string_view key, std::string_view version) const {
  return settings_.folder / fmt::format("{}-{}{}", hexadecimal(key), version, entry_suffix);
}

fs::path Cache::record_file_of(std::string_view key) const {
  return settings_.folder / (hexadecimal(key) + std::string(record_suffix));
}

std::optional<Cache::Result> Cache::find(std::string_view key, std::string_view version) const {
  std::optional<std::string> image = read(file_of(key, version), with_version(key, version));
  if (!image) return std::nullopt;
  return Result{std::move(*image), std::string(version), true, {}};
}

std::optional<Cache::Result> Cache::find_newest(std::string_view key) const {
  const std::string prefix = hexadecimal(key) + "-";
  std::vector<std::string> versions;
  for (const StoredFile& stored : files_of(settings_.folder)) {
    const std::string name = stored.file.filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(entry_suffix)) continue;
    versions.push_back(name.substr(prefix.size(), name.size() - prefix.size() - entry_suffix.size()));
  }
  // Numbers are compared as numbers, so 13.10 is newer than 13.9.
  std::ranges::sort(versions, [](const auto& a, const auto& b) { return ::strverscmp(a.c_str(), b.c_str()) > 0; });
  for (const std::string& version : versions) {
    if (auto result = find(key, version)) return result;
  }
  return std::nullopt;
}

std::optional<std::string> Cache::read_record(std::string_view key) const { return read(record_file_of(key), key); }

void Cache::write_record(std::string_view key, std::string_view text) const {
  std::error_code ignored;
  fs::create_directories(settings_.folder, ignored);
  write(record_file_of(key), key, text);
}

Cache::Result Cache::find_or_build(std::string_view key, std::string_view version,
                                   const std::function<std::string()>& build) const {
  if (auto result = find(key, version)) return std::move(*result);

  std::error_code ignored;
  fs::create_directories(settings_.folder, ignored);
  // The operating system releases the lock of a process that ends, so no process waits for a dead builder. Without a
  // lock (a read-only folder, or a file system without locks), each process builds the image.
  const fs::path lock_file = settings_.folder / fmt::format("lock-{}", hexadecimal(key).substr(0, 2));
  const File lock(std::fopen(lock_file.c_str(), "ae"));
  if (lock && ::flock(::fileno(lock.get()), LOCK_EX) == 0) {
    if (auto result = find(key, version)) return std::move(*result);
  }
  Result result{build(), std::string(version), false, {}};
  result.warning = write(file_of(key, version), with_version(key, version), result.image);
  shrink();
  return result;
}

KernelCache Cache::usage() const {
  KernelCache usage;
  usage.folder = settings_.folder.string();
  usage.limit_bytes = static_cast<int64_t>(settings_.limit_bytes);
  for (const StoredFile& stored : files_of(settings_.folder)) {
    if (!ends_with(stored.file, entry_suffix)) continue;
    ++usage.entries;
    usage.bytes += static_cast<int64_t>(stored.bytes);
  }
  std::error_code ignored;
  fs::create_directories(settings_.folder, ignored);
  const fs::path probe = settings_.folder / fmt::format("writable.{}{}", ::getpid(), unfinished_suffix);
  if (!File(std::fopen(probe.c_str(), "we"))) {
    usage.advice = fmt::format(
        "it cannot be written ({}), so that every process compiles its kernels anew: set GDPA_CACHE_DIR to a folder "
        "that can",
        std::strerror(errno));
  }
  ::unlink(probe.c_str());
  return usage;
}

void Cache::shrink() const {
  std::vector<StoredFile> entries = files_of(settings_.folder);
  std::error_code gone;
  const auto now = fs::file_time_type::clock::now();
  std::erase_if(entries, [&](const StoredFile& stored) {
    if (ends_with(stored.file, unfinished_suffix) && now - stored.used > unfinished_lifetime) {
      fs::remove(stored.file, gone);  // a killed process has left it
    }
    return !ends_with(stored.file, entry_suffix) && !ends_with(stored.file, record_suffix);
  });
  std::uintmax_t total = 0;
  for (const StoredFile& entry : entries) total += entry.bytes;
  if (total <= settings_.limit_bytes) return;
  std::ranges::sort(entries, {}, &StoredFile::used);
  const auto goal = static_cast<std::uintmax_t>(share_kept_when_full * static_cast<double>(settings_.limit_bytes));
  for (const StoredFile& entry : entries) {
    if (total <= goal) break;
    fs::remove(entry.file, gone);
    total -= entry.bytes;
  }
}

}  // namespace gdpa::jit
