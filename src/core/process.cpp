#include "core/process.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

#include "core/error.h"

namespace mercer {
namespace {

namespace fs = std::filesystem;

/// A file in memory.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("mercer", MFD_CLOEXEC)) {}
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  bool rewind() const { return ::lseek(descriptor_, 0, SEEK_SET) == 0; }

 private:
  int descriptor_;
};

/// What a new process starts with besides its program.
class SpawnSettings {
 public:
  SpawnSettings(int input, int output) {
    ::posix_spawn_file_actions_init(&files_);
    ::posix_spawn_file_actions_adddup2(&files_, input, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&files_, output, STDOUT_FILENO);
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    ::posix_spawn_file_actions_addclosefrom_np(&files_, STDERR_FILENO + 1);
#endif
    ::posix_spawnattr_init(&attributes_);
    sigset_t none, defaults;
    ::sigemptyset(&none);
    ::sigemptyset(&defaults);
    ::sigaddset(&defaults, SIGPIPE);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &defaults);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&files_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  const posix_spawn_file_actions_t* files() const { return &files_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

std::string system_text(int error) { return std::generic_category().message(error); }

/// Empty after status 0.
std::string wait_for(pid_t process) {
  int status = 0;
  pid_t ended;
  do ended = ::waitpid(process, &status, 0);
  while (ended < 0 && errno == EINTR);
  // Somebody else in this process waits for all children, or ignores SIGCHLD: the output alone tells how it went.
  if (ended < 0) return {};
  if (WIFSIGNALED(status)) return fmt::format("it ended by signal {}", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? std::string() : fmt::format("it ended with status {}", WEXITSTATUS(status));
}

fs::path own_file() {
  Dl_info info{};
  std::error_code error;
  const bool is_known = ::dladdr(reinterpret_cast<void*>(&own_file), &info) != 0 && info.dli_fname != nullptr;
  // Of the program itself the loader gives the name by which it was started.
  if (is_known && info.dli_fname[0] == '/') return info.dli_fname;
  return fs::read_symlink("/proc/self/exe", error);
}

}  // namespace

ProcessResult run_process(const fs::path& program, const std::vector<std::string>& arguments, std::string_view input) {
  const auto refused = [&](std::string_view why) {
    return ProcessResult{std::nullopt, fmt::format("{}: {}", program.string(), why)};
  };
  const MemoryFile in, out;
  const bool is_ready = in.get() >= 0 && out.get() >= 0 && write_whole(in.get(), input) && in.rewind();
  if (!is_ready) return refused(system_text(errno));
  std::vector<std::string> words = {program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const SpawnSettings settings(in.get(), out.get());
  pid_t process = 0;
  const int error =
      ::posix_spawn(&process, program.c_str(), settings.files(), settings.attributes(), pointers.data(), environ);
  if (error != 0) return refused(system_text(error));
  const std::string failure = wait_for(process);
  if (!failure.empty()) return refused(failure);
  ProcessResult result;
  if (out.rewind()) result.output = read_to_end(out.get());
  return result.output ? result : refused(system_text(errno));
}

std::optional<fs::path> program_beside(const std::string& name) {
  const fs::path folder = own_file().parent_path();
  for (const fs::path& file : {folder / name, folder / "mercer" / name})
    if (::access(file.c_str(), X_OK) == 0) return file;
  return std::nullopt;
}

std::optional<std::string> read_to_end(int descriptor) {
  std::string bytes;
  char part[1 << 16];
  for (;;) {
    const ssize_t got = ::read(descriptor, part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return bytes;
    bytes.append(part, static_cast<std::size_t>(got));
  }
}

bool write_whole(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return true;
}

}  // namespace mercer
