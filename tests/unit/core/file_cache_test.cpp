// The cache of files: round trips, corruption, foreign files, the size cap, many writers, killed writers.
#include "core/system/file_cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "core/system/log.h"
#include "core/testing.h"

namespace mercer {
namespace {

using testing_support::held_in_children;
namespace fs = std::filesystem;
constexpr std::int64_t kMiB = 1 << 20;

class FileCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::off);
  }
  void TearDown() override { set_log_level(LogLevel::warning); }
  fs::path directory() const { return root_ / "a" / "b"; }
  FileCache cache(std::int64_t cap = kMiB) const { return FileCache(directory(), cap); }

  static std::string bytes_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void put(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    ::chmod(path.c_str(), 0600);
  }

  testing_support::TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(FileCacheTest, keeps_what_was_written) {
  FileCache c = cache();
  EXPECT_FALSE(c.read("key"));
  const std::string payload("\0code\xff", 6);
  EXPECT_TRUE(c.write("key", payload));
  EXPECT_EQ(c.read("key"), payload);
  EXPECT_TRUE(c.write("key", "second"));
  EXPECT_EQ(cache().read("key"), "second");
  EXPECT_TRUE(c.write("", ""));
  EXPECT_EQ(c.read(""), "");
  EXPECT_EQ(c.stats().files, 2);
  c.clear();
  EXPECT_FALSE(c.read("key"));
  EXPECT_EQ(c.stats().files, 0);
}

TEST_F(FileCacheTest, files_and_directory_are_private) {
  FileCache c = cache();
  ASSERT_TRUE(c.write("key", "payload"));
  struct stat status {};
  ASSERT_EQ(::stat(c.path_of("key").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat(directory().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(FileCacheTest, every_flipped_byte_and_every_truncation_is_noticed_and_removed) {
  FileCache c = cache();
  ASSERT_TRUE(c.write("key", "payload"));
  const fs::path path = c.path_of("key");
  const std::string good = bytes_of(path);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    put(path, bad);
    EXPECT_FALSE(c.read("key")) << at;
    EXPECT_FALSE(fs::exists(path)) << at;
    put(path, good.substr(0, at));
    EXPECT_FALSE(c.read("key")) << at;
  }
  put(path, good + "x");
  EXPECT_FALSE(c.read("key"));
  put(path, good);
  EXPECT_EQ(c.read("key"), "payload");
}

TEST_F(FileCacheTest, another_keys_file_under_this_name_is_refused) {
  FileCache c = cache();
  ASSERT_TRUE(c.write("other", "payload"));
  fs::rename(c.path_of("other"), c.path_of("key"));
  EXPECT_FALSE(c.read("key"));
}

TEST_F(FileCacheTest, a_file_others_can_write_is_refused) {
  FileCache c = cache();
  ASSERT_TRUE(c.write("key", "payload"));
  ::chmod(c.path_of("key").c_str(), 0666);
  EXPECT_FALSE(c.read("key"));
  EXPECT_FALSE(fs::exists(c.path_of("key")));
}

TEST_F(FileCacheTest, links_and_directories_in_place_of_a_file_are_missing) {
  FileCache c = cache();
  ASSERT_TRUE(c.write("key", "payload"));
  const fs::path elsewhere = root_ / "elsewhere";
  fs::rename(c.path_of("key"), elsewhere);
  fs::create_symlink(elsewhere, c.path_of("key"));
  EXPECT_FALSE(c.read("key"));
  EXPECT_TRUE(fs::exists(elsewhere));
  fs::create_directories(c.path_of("folder"));
  EXPECT_FALSE(c.read("folder"));
  EXPECT_FALSE(c.write("folder", "payload"));
}

TEST_F(FileCacheTest, a_directory_others_can_write_is_not_used) {
  fs::create_directories(directory());
  ::chmod(directory().c_str(), 0777);
  FileCache c = cache();
  EXPECT_FALSE(c.write("key", "payload"));
  EXPECT_FALSE(c.read("key"));
}

TEST_F(FileCacheTest, an_unusable_place_never_throws) {
  FileCache nowhere("", kMiB);
  EXPECT_FALSE(nowhere.write("key", "payload"));
  EXPECT_FALSE(nowhere.read("key"));
  put(root_ / "file", "");
  FileCache below_a_file(root_ / "file" / "cache", kMiB);
  EXPECT_FALSE(below_a_file.write("key", "payload"));
  EXPECT_FALSE(below_a_file.read("key"));
  EXPECT_EQ(below_a_file.stats().files, 0);
}

TEST_F(FileCacheTest, trims_the_oldest_first) {
  FileCache c = cache(kMiB);
  const auto now = fs::file_time_type::clock::now();
  for (int k = 0; k < 10; ++k) {
    const std::string key = "key" + std::to_string(k);
    ASSERT_TRUE(c.write(key, std::string(1000, 'x')));
    fs::last_write_time(c.path_of(key), now - std::chrono::hours(k % 2 == 0 ? 20 : 10));
  }
  c.trim(5 * 1100);
  EXPECT_EQ(c.stats().files, 5);
  for (int k = 0; k < 10; ++k) EXPECT_EQ(c.read("key" + std::to_string(k)).has_value(), k % 2 == 1) << k;
}

TEST_F(FileCacheTest, reading_makes_a_file_young) {
  FileCache c = cache();
  ASSERT_TRUE(c.write("key", "payload"));
  const auto now = fs::file_time_type::clock::now();
  fs::last_write_time(c.path_of("key"), now - std::chrono::hours(48));
  ASSERT_TRUE(c.read("key"));
  EXPECT_GT(fs::last_write_time(c.path_of("key")), now - std::chrono::hours(1));
}

TEST_F(FileCacheTest, stays_near_its_cap) {
  const std::int64_t cap = 64 << 10;
  FileCache c = cache(cap);
  for (int k = 0; k < 200; ++k) ASSERT_TRUE(c.write("key" + std::to_string(k), std::string(2000, 'x')));
  EXPECT_LE(c.stats().bytes, cap + cap / 8 + 4096);
  EXPECT_GE(c.stats().files, 10);
  EXPECT_TRUE(c.read("key199"));
  EXPECT_FALSE(c.write("large", std::string(cap + 1, 'x')));
}

TEST_F(FileCacheTest, temporary_files_of_dead_writers_go_after_an_hour) {
  FileCache c = cache();
  ASSERT_TRUE(c.write("key", "payload"));
  const fs::path dead = directory() / ".tmp-1-0-0", busy = directory() / ".tmp-2-0-0";
  put(dead, "half");
  put(busy, "half");
  fs::last_write_time(dead, fs::file_time_type::clock::now() - std::chrono::hours(2));
  ASSERT_TRUE(cache().write("other", "payload"));  // the first write of a process looks
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(busy));
  EXPECT_TRUE(c.read("key"));
}

TEST_F(FileCacheTest, processes_that_write_at_once_and_are_killed_leave_whole_files) {
  std::vector<pid_t> children;
  for (int writer = 0; writer < 4; ++writer) {
    const pid_t child = ::fork();
    if (child == 0) {
      FileCache mine = cache(64 * kMiB);
      for (;;) mine.write("shared", std::string(200000, static_cast<char>('a' + writer)));
    }
    children.push_back(child);
  }
  FileCache c = cache(64 * kMiB);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
  int seen = 0;
  while (std::chrono::steady_clock::now() < end || seen == 0) {
    if (const auto payload = c.read("shared")) {
      ++seen;
      ASSERT_EQ(payload->size(), 200000u);
      ASSERT_EQ(payload->find_first_not_of(payload->front()), std::string::npos);
    }
  }
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  EXPECT_TRUE(c.read("shared"));  // never removed by mistake
}

TEST_F(FileCacheTest, two_hundred_processes_share_one_key) {
  const std::string payload(100000, 'p');
  const auto use = [&] {
    FileCache mine = cache(64 * kMiB);
    for (int round = 0; round < 5; ++round) {
      if (const auto known = mine.read("shared"); known && *known != payload) return false;
      if (!mine.write("shared", payload) || mine.read("shared") != payload) return false;
    }
    return true;
  };
  constexpr int kProcesses = 200;
  EXPECT_EQ(held_in_children(kProcesses, use), kProcesses);
  EXPECT_EQ(cache().stats().files, 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory()), fs::directory_iterator()), 1);  // nothing temporary
}

TEST_F(FileCacheTest, processes_that_write_and_trim_at_once_keep_their_bearings) {
  const std::int64_t cap = 256 << 10;
  const auto use = [&](int child) {
    FileCache mine = cache(cap);
    for (int round = 0; round < 40; ++round) {
      const std::string key = std::to_string(child) + "-" + std::to_string(round);
      if (!mine.write(key, std::string(4000, 'x'))) return false;
      if (const auto known = mine.read(key); known && known->size() != 4000) return false;
    }
    return true;
  };
  EXPECT_EQ(held_in_children(8, use), 8);
  FileCache c = cache(cap);
  c.write("last", "x");  // a new writer looks at the folder at once
  EXPECT_LE(c.stats().bytes, cap);
}

TEST_F(FileCacheTest, a_full_disk_leaves_what_was_there) {
  FileCache c = cache();
  ASSERT_TRUE(c.write("key", "payload"));
  const auto full = [&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};  // write(2) then fails in the middle of a file, as on a full disk
    ::setrlimit(RLIMIT_FSIZE, &limit);
    FileCache mine = cache();
    return !mine.write("key", std::string(20000, 'x')) && mine.read("key") == "payload";
  };
  EXPECT_EQ(held_in_children(1, full), 1);
  EXPECT_EQ(c.read("key"), "payload");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory()), fs::directory_iterator()), 1);
}

TEST_F(FileCacheTest, files_are_listed_with_their_keys) {
  FileCache c = cache();
  ASSERT_TRUE(c.write("old key", "payload\n" + std::string(1000, 'x')));
  ASSERT_TRUE(c.write("key", "payload"));
  fs::last_write_time(c.path_of("old key"), fs::file_time_type::clock::now() - std::chrono::hours(2));
  put(directory() / "foreign.mk", "foreign");
  const std::vector<FileCache::File> files = c.files();
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[2].key, "old key");
  EXPECT_NEAR(static_cast<double>(files[2].age_seconds), 7200, 60);
  EXPECT_EQ(files[2].bytes, 40 + 7 + 8 + 1000);
  EXPECT_EQ(files[2].first_line, "payload");
  EXPECT_EQ(files[2].path, c.path_of("old key"));
  EXPECT_TRUE(FileCache("", kMiB).files().empty());
}

TEST_F(FileCacheTest, a_read_only_folder_is_read_as_it_is) {
  ASSERT_TRUE(cache().write("key", "payload"));
  ::chmod(cache().path_of("key").c_str(), 0664);
  FileCache store = FileCache::read_only(directory());
  EXPECT_EQ(store.read("key"), "payload");
  EXPECT_FALSE(store.write("other", "payload"));
  store.clear();
  EXPECT_EQ(store.read("key"), "payload");
  put(store.path_of("bad"), "damaged");
  EXPECT_FALSE(store.read("bad"));
  EXPECT_TRUE(fs::exists(store.path_of("bad")));
}

TEST_F(FileCacheTest, environment_chooses_the_place) {
  ::setenv("MERCER_CACHE_DIR", (root_ / "named").c_str(), 1);
  ::setenv("MERCER_CACHE_SIZE", "3", 1);
  EXPECT_EQ(FileCache::from_environment().directory(), root_ / "named");
  EXPECT_EQ(FileCache::from_environment().size_cap(), 3 * kMiB);
  ::setenv("MERCER_CACHE_DIR", "off", 1);
  EXPECT_TRUE(FileCache::from_environment().directory().empty());
  ::unsetenv("MERCER_CACHE_DIR");
  ::unsetenv("MERCER_CACHE_SIZE");
  EXPECT_EQ(FileCache::from_environment().size_cap(), 256 * kMiB);
}

}  // namespace
}  // namespace mercer
