// The cache of files. Everything that a lock would do is left to rename(2) and to the checksum.
#include "core/system/file_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/hash.h"
#include "core/system/env.h"
#include "core/system/log.h"

namespace mercer {
namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 8> kMagic = {'M', 'e', 'r', 'c', 'e', 'r', 'k', '1'};
constexpr const char* kSuffix = ".mk";
constexpr const char* kTemporaryPrefix = ".tmp-";
constexpr auto kTemporaryLife = std::chrono::hours(1);  // a write takes milliseconds
constexpr std::int64_t kLargestFile = std::int64_t{1} << 30;
constexpr std::int64_t kUseGranularity = 3600;  // seconds; a reader refreshes the file's time at most this often

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint64_t key_bytes = 0, payload_bytes = 0;
  Hash128 checksum;  // of key + payload
};
static_assert(sizeof(Header) == 40);

class OpenFile {
 public:
  explicit OpenFile(int descriptor) : descriptor_(descriptor) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

  bool read_all(char* data, std::size_t bytes) const {
    while (bytes > 0) {
      const ssize_t got = ::read(descriptor_, data, bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      data += got;
      bytes -= static_cast<std::size_t>(got);
    }
    return true;
  }

  bool write_all(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(put));
    }
    return true;
  }

 private:
  int descriptor_;
};

bool only_ours(const struct stat& status) { return status.st_uid == ::geteuid() && (status.st_mode & 022) == 0; }

/// The payload if the open file is whole and of this key.
std::optional<std::string> check_out(const OpenFile& file, const struct stat& status, std::string_view key) {
  if (!S_ISREG(status.st_mode)) return std::nullopt;
  if (status.st_size < static_cast<off_t>(sizeof(Header)) || status.st_size > kLargestFile) return std::nullopt;
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  if (!file.read_all(bytes.data(), bytes.size())) return std::nullopt;
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::string_view body = std::string_view(bytes).substr(sizeof header);
  if (header.magic != kMagic || header.key_bytes != key.size() || body.size() < key.size()) return std::nullopt;
  if (header.payload_bytes != body.size() - key.size() || body.substr(0, key.size()) != key) return std::nullopt;
  if (!(hash128(body) == header.checksum)) return std::nullopt;
  bytes.erase(0, sizeof header + key.size());
  return bytes;
}

void note_use(const OpenFile& file, const struct stat& status) {
  if (std::time(nullptr) - status.st_mtim.tv_sec > kUseGranularity) ::futimens(file.descriptor(), nullptr);
}

std::string temporary_name() {
  static constinit std::atomic<std::uint64_t> counter{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return fmt::format("{}{}-{}-{:x}", kTemporaryPrefix, ::getpid(), counter.fetch_add(1), now);
}

fs::path default_directory() {
  if (const auto named = env_text("MERCER_CACHE_DIR")) return *named == "off" ? fs::path() : fs::path(*named);
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg == '/') return fs::path(xdg) / "mercer";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return fs::path(home) / ".cache" / "mercer";
  return {};
}

struct Entry {
  fs::path path;
  fs::file_time_type time;
  std::int64_t bytes;
  bool temporary;
};

std::vector<Entry> list(const fs::path& directory) {
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool temporary = name.starts_with(kTemporaryPrefix);
    if (!temporary && !name.ends_with(kSuffix)) continue;
    std::error_code gone;  // another process may have removed it meanwhile
    const auto time = at->last_write_time(gone);
    const auto bytes = gone ? 0 : static_cast<std::int64_t>(at->file_size(gone));
    if (!gone) entries.push_back({at->path(), time, bytes, temporary});
  }
  return entries;
}

/// Fills in what stands in the file; nothing when it is not ours.
void read_beginning(FileCache::File& entry) {
  constexpr std::uint64_t kMostOfLine = 256;
  const OpenFile file(::open(entry.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  Header header;
  if (!file || !file.read_all(reinterpret_cast<char*>(&header), sizeof header) || header.magic != kMagic) return;
  const auto size = static_cast<std::uint64_t>(entry.bytes);
  if (header.key_bytes > size || header.payload_bytes > size) return;
  std::string key(header.key_bytes, '\0'), line(std::min(header.payload_bytes, kMostOfLine), '\0');
  if (!file.read_all(key.data(), key.size()) || !file.read_all(line.data(), line.size())) return;
  entry.key = std::move(key);
  entry.first_line = line.substr(0, line.find('\n'));
}

}  // namespace

FileCache::FileCache(fs::path directory, std::int64_t size_cap_bytes)
    : directory_(std::move(directory)), size_cap_(size_cap_bytes) {}

FileCache::FileCache(FileCache&& other) noexcept
    : directory_(std::move(other.directory_)),
      size_cap_(other.size_cap_),
      read_only_(other.read_only_),
      until_trim_(other.until_trim_.load()) {}

FileCache FileCache::read_only(fs::path directory) {
  FileCache store(std::move(directory), 0);
  store.read_only_ = true;
  return store;
}

FileCache FileCache::from_environment() {
  constexpr std::int64_t kDefaultMiB = 256, kMostMiB = std::int64_t{1} << 24;
  return FileCache(default_directory(), env_integer("MERCER_CACHE_SIZE", 0, kMostMiB).value_or(kDefaultMiB) << 20);
}

fs::path FileCache::path_of(std::string_view key) const { return directory_ / (hash128(key).to_text() + kSuffix); }

std::optional<std::string> FileCache::read(std::string_view key) const {
  if (directory_.empty()) return std::nullopt;
  const fs::path path = path_of(key);
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file) {
    if (errno == ELOOP && !read_only_) ::unlink(path.c_str());  // a link in a file's place is not ours
    return std::nullopt;
  }
  if (::fstat(file.descriptor(), &status) != 0) return std::nullopt;
  std::optional<std::string> payload;
  if (read_only_ || only_ours(status)) payload = check_out(file, status, key);
  if (payload && !read_only_) note_use(file, status);
  if (!payload && !read_only_) {
    log(LogLevel::info, "cache: {} did not check out and is removed", path.string());
    ::unlink(path.c_str());
  }
  return payload;
}

bool FileCache::prepare_directory() const {
  std::error_code error;
  if (!fs::exists(directory_, error)) {
    if (directory_.has_parent_path()) fs::create_directories(directory_.parent_path(), error);
    if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) {
      log_once(LogLevel::warning, "cache: {} cannot be made: {}", directory_.string(), std::strerror(errno));
      return false;
    }
  }
  struct stat status {};
  if (::stat(directory_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || !only_ours(status)) {
    log_once(LogLevel::warning, "cache: {} is not used: it must be a directory that only its user can write, and ours",
             directory_.string());
    return false;
  }
  return true;
}

bool FileCache::write(std::string_view key, std::string_view payload) {
  const auto total = static_cast<std::int64_t>(sizeof(Header) + key.size() + payload.size());
  if (read_only_ || directory_.empty() || total > std::min(size_cap_, kLargestFile) || !prepare_directory())
    return false;

  std::string bytes(sizeof(Header), '\0');
  bytes.append(key).append(payload);
  const Header header{kMagic, key.size(), payload.size(), hash128(std::string_view(bytes).substr(sizeof(Header)))};
  std::memcpy(bytes.data(), &header, sizeof header);

  const fs::path temporary = directory_ / temporary_name();
  bool ok = false;
  {
    const OpenFile file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    ok = file && file.write_all(bytes);
  }
  // No fsync: after a power failure the checksum tells, and a kernel can be compiled again.
  ok = ok && ::rename(temporary.c_str(), path_of(key).c_str()) == 0;
  if (!ok) {
    log_once(LogLevel::warning, "cache: writing to {} failed: {}", directory_.string(), std::strerror(errno));
    ::unlink(temporary.c_str());
    return false;
  }
  trim_now_and_then(total);
  return true;
}

void FileCache::trim_now_and_then(std::int64_t written) {
  if (until_trim_.fetch_sub(written, std::memory_order_relaxed) > written) return;
  // Several processes may each write an eighth past the cap before one looks; trimming to 3/4 makes room for that.
  until_trim_.store(size_cap_ / 8, std::memory_order_relaxed);
  trim(stats().bytes > size_cap_ ? size_cap_ / 4 * 3 : size_cap_);
}

void FileCache::trim(std::int64_t cap_bytes) {
  if (directory_.empty() || read_only_) return;
  std::vector<Entry> entries = list(directory_);
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.time < b.time; });
  const auto dead_before = fs::file_time_type::clock::now() - kTemporaryLife;
  std::int64_t total = 0;
  for (const Entry& entry : entries) total += entry.temporary ? 0 : entry.bytes;
  for (const Entry& entry : entries) {
    const bool drop = entry.temporary ? entry.time < dead_before : total > cap_bytes;
    if (!drop) continue;
    ::unlink(entry.path.c_str());
    if (!entry.temporary) total -= entry.bytes;
  }
}

std::vector<FileCache::File> FileCache::files() const {
  std::vector<File> found;
  if (directory_.empty()) return found;
  const auto now = fs::file_time_type::clock::now();
  for (const Entry& entry : list(directory_)) {
    if (entry.temporary) continue;
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(now - entry.time).count();
    found.push_back({entry.path, {}, {}, entry.bytes, std::max<std::int64_t>(age, 0)});
    read_beginning(found.back());
  }
  std::sort(found.begin(), found.end(), [](const File& a, const File& b) { return a.age_seconds < b.age_seconds; });
  return found;
}

FileCache::Stats FileCache::stats() const {
  Stats stats;
  if (directory_.empty()) return stats;
  for (const Entry& entry : list(directory_)) {
    if (entry.temporary) continue;
    ++stats.files;
    stats.bytes += entry.bytes;
  }
  return stats;
}

}  // namespace mercer
