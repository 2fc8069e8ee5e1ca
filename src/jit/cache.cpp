// The kernel cache on disk; see cache.h. An entry is: magic, version of this layout, length of key, length of image,
// checksum of both, key, image. The key in the file ends with the version of the compiler. The name of the file is the
// hash of the key without that version, and the version in clear text, so that all versions of a key can be listed.
#include "jit/cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
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

std::uint64_t checksum_of(std::string_view key, std::string_view image) {
  return XXH3_64bits_withSeed(image.data(), image.size(), XXH3_64bits(key.data(), key.size()));
}

EntryHeader header_of(std::string_view key, std::string_view image) {
  EntryHeader header;
  header.key_bytes = key.size();
  header.image_bytes = image.size();
  header.checksum = checksum_of(key, image);
  return header;
}

/// Returns the image of a complete and undamaged entry of `key`, or nothing.
std::optional<std::string> read(const fs::path& file, std::string_view key) {
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  if (!stream) return std::nullopt;
  std::string content(static_cast<std::size_t>(std::max<std::streamoff>(stream.tellg(), 0)), '\0');
  stream.seekg(0);
  if (!stream.read(content.data(), static_cast<std::streamsize>(content.size()))) return std::nullopt;
  EntryHeader header;
  if (content.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, content.data(), sizeof header);
  const std::string_view body = std::string_view(content).substr(sizeof header);
  if (header.key_bytes != key.size() || body.size() < key.size() || body.substr(0, key.size()) != key) {
    return std::nullopt;
  }
  const std::string_view image = body.substr(key.size());
  const EntryHeader expected = header_of(key, image);
  if (std::memcmp(&header, &expected, sizeof header) != 0) return std::nullopt;
  return std::string(image);
}

/// A file descriptor that the destructor closes.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

bool write_all(const File& file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// Writes a temporary file, forces it to the disk and renames it, so readers see either the old or the new entry.
/// Returns the reason for a failure, or an empty string.
std::string write(const fs::path& file, std::string_view key, std::string_view image) {
  static std::atomic<unsigned> counter = 0;
  const fs::path unfinished = fmt::format("{}.{}.{}{}", file.string(), ::getpid(), counter++, unfinished_suffix);
  std::string problem;
  {
    const File out(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    const EntryHeader header = header_of(key, image);
    const std::string_view header_bytes(reinterpret_cast<const char*>(&header), sizeof header);
    const bool is_written =
        out && write_all(out, header_bytes) && write_all(out, key) && write_all(out, image) && ::fsync(out.get()) == 0;
    if (!is_written) problem = std::strerror(errno);
  }
  if (problem.empty() && ::rename(unfinished.c_str(), file.c_str()) != 0) problem = std::strerror(errno);
  if (!problem.empty()) {
    ::unlink(unfinished.c_str());
    return fmt::format(
        "the kernel cache could not keep {}: {}; free some space or set GDPA_CACHE_DIR to a folder that "
        "can be written",
        file.string(), problem);
  }
  return {};
}

std::string hexadecimal(std::string_view key) {
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string with_version(std::string_view key, std::string_view version) {
  return fmt::format("{}\nNVRTC {}", key, version);
}

/// Returns the numbers of a version, so that 13.10 is newer than 13.9.
std::vector<int> numbers_of(std::string_view version) {
  std::vector<int> numbers;
  const char* at = version.data();
  const char* const end = at + version.size();
  while (at < end) {
    int number = 0;
    const auto [rest, error] = std::from_chars(at, end, number);
    if (error == std::errc()) numbers.push_back(number);
    at = std::max(rest, at) + 1;
  }
  return numbers;
}

bool ends_with(const fs::path& file, std::string_view suffix) {
  return std::string_view(file.native()).ends_with(suffix);
}

/// Returns the bytes of a size, or nothing: a number, perhaps with a fraction, and a unit in any case. As in the tools
/// of GNU, K and KiB are 1024 bytes and KB is 1000.
std::optional<std::uintmax_t> bytes_of(std::string_view text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) == 0) return std::nullopt;
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string unit(rest, end);
  unit.erase(0, unit.find_first_not_of(' '));
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view prefixes = "KMGT";
    const std::size_t power = prefixes.find(unit[0]);
    const std::string_view suffix = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || !(suffix.empty() || suffix == "B" || suffix == "IB")) return std::nullopt;
    for (std::size_t i = 0; i <= power; ++i) number *= suffix == "B" ? 1000 : 1024;
  }
  constexpr double most = 0x1p63;
  return number < most ? std::optional(static_cast<std::uintmax_t>(number)) : std::nullopt;
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
  const fs::path file = file_of(key, version);
  std::optional<std::string> image = read(file, with_version(key, version));
  if (!image) return std::nullopt;
  std::error_code ignored;
  fs::last_write_time(file, fs::file_time_type::clock::now(), ignored);  // shrink() uses this time
  return Result{std::move(*image), std::string(version), true, {}};
}

std::optional<Cache::Result> Cache::find_newest(std::string_view key) const {
  const std::string prefix = hexadecimal(key) + "-";
  std::vector<std::string> versions;
  std::error_code error;
  for (fs::directory_iterator it(settings_.folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(prefix) || !ends_with(name, entry_suffix)) continue;
    versions.push_back(name.substr(prefix.size(), name.size() - prefix.size() - entry_suffix.size()));
  }
  std::sort(versions.begin(), versions.end(),
            [](const std::string& a, const std::string& b) { return numbers_of(a) > numbers_of(b); });
  for (const std::string& version : versions) {
    if (auto result = find(key, version)) return result;
  }
  return std::nullopt;
}

std::optional<std::string> Cache::read_record(std::string_view key) const {
  const fs::path file = record_file_of(key);
  std::optional<std::string> text = read(file, key);
  std::error_code ignored;
  if (text) fs::last_write_time(file, fs::file_time_type::clock::now(), ignored);
  return text;
}

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
  const File lock(::open(lock_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (lock && ::flock(lock.get(), LOCK_EX) == 0) {
    if (auto result = find(key, version)) return std::move(*result);
  }
  Result result{build(), std::string(version), false, {}};
  result.warning = write(file_of(key, version), with_version(key, version), result.image);
  shrink();
  return result;
}

CacheUsage Cache::usage() const {
  CacheUsage usage;
  std::error_code error;
  for (fs::directory_iterator it(settings_.folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    const auto bytes = it->file_size(gone);
    if (gone || !ends_with(it->path(), entry_suffix)) continue;
    ++usage.entries;
    usage.bytes += bytes;
  }
  fs::create_directories(settings_.folder, error);
  const fs::path probe = settings_.folder / fmt::format("writable.{}{}", ::getpid(), unfinished_suffix);
  const File file(::open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (!file) usage.problem = std::strerror(errno);
  ::unlink(probe.c_str());
  return usage;
}

void Cache::shrink() const {
  struct Entry {
    fs::path file;
    fs::file_time_type used;
    std::uintmax_t bytes;
  };
  std::vector<Entry> entries;
  std::uintmax_t total = 0;
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator it(settings_.folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;  // another process may remove listed files
    const auto used = it->last_write_time(gone);
    const auto bytes = it->file_size(gone);
    if (gone) continue;
    if (ends_with(it->path(), unfinished_suffix) && now - used > unfinished_lifetime) {
      fs::remove(it->path(), gone);  // a killed process has left it
    } else if (ends_with(it->path(), entry_suffix) || ends_with(it->path(), record_suffix)) {
      entries.push_back({it->path(), used, bytes});
      total += bytes;
    }
  }
  if (total <= settings_.limit_bytes) return;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
  const auto goal = static_cast<std::uintmax_t>(share_kept_when_full * static_cast<double>(settings_.limit_bytes));
  for (const Entry& entry : entries) {
    if (total <= goal) break;
    std::error_code gone;
    fs::remove(entry.file, gone);
    total -= entry.bytes;
  }
}

}  // namespace gdpa::jit
