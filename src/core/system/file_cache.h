// Compiled kernels on disk: one plain file a key, safe among processes, threads and kill -9.
//
//   file = <directory>/<hash128 of the key>.mk = magic, sizes, checksum | key | payload
//
// Writing goes through a temporary file and a rename, so a reader sees a whole file or none. What does not check out
// (truncated, altered, another key, not ours, writable by others) counts as missing and is removed: the payload is code
// that will run. No failure of the disk ever fails a call; it is logged once.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mercer {

class FileCache {
 public:
  struct Stats {
    std::int64_t files = 0, bytes = 0;
  };
  struct File {
    std::filesystem::path path;
    std::string key, first_line;              // that of the payload, cut at 256 bytes
    std::int64_t bytes = 0, age_seconds = 0;  // since it was written or, within an hour, last read
  };

  /// An empty directory name makes a cache that never has anything. The directory is made at the first write.
  FileCache(std::filesystem::path directory, std::int64_t size_cap_bytes);
  /// MERCER_CACHE_DIR and MERCER_CACHE_SIZE.
  static FileCache from_environment();
  /// A folder that came with the program: read with the same checks but whoever owns it, never written, never tidied.
  static FileCache read_only(std::filesystem::path directory);
  FileCache(FileCache&& other) noexcept;
  FileCache(const FileCache&) = delete;
  FileCache& operator=(const FileCache&) = delete;

  std::optional<std::string> read(std::string_view key) const;
  /// False when nothing was kept.
  bool write(std::string_view key, std::string_view payload);
  /// Removes the oldest files until `cap_bytes` are left, and temporary files of dead writers.
  void trim(std::int64_t cap_bytes);
  void clear() { trim(0); }
  Stats stats() const;
  /// The files that there are, the youngest first. Their checksums are not computed.
  std::vector<File> files() const;

  const std::filesystem::path& directory() const { return directory_; }
  std::int64_t size_cap() const { return size_cap_; }
  std::filesystem::path path_of(std::string_view key) const;

 private:
  bool prepare_directory() const;
  void trim_now_and_then(std::int64_t written);

  std::filesystem::path directory_;
  std::int64_t size_cap_;
  bool read_only_ = false;
  std::atomic<std::int64_t> until_trim_{0};  // bytes to write before the directory is looked at again
};

}  // namespace mercer
