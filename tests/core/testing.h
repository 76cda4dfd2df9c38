// Shared by the tests of all layers: the error that a call throws, folders, checks in forked children, a system without
// threads.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace mercer::testing_support {

template <class Function>
Error error_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorKind::numerical, "nothing");
}

/// A folder that is gone, with all in it, when this is.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "mercer-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no folder " << name;
    else path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Runs `check`, which may take the child's number, in forked children, all at once, and tells how many it holds in.
template <class Check>
int held_in_children(int children, Check check) {
  std::vector<pid_t> pids;
  for (int child = 0; child < children; ++child) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(120);  // a hang is a failure too
      bool good = false;
      try {
        if constexpr (std::is_invocable_v<Check, int>) good = check(child);
        else good = check();
      } catch (...) {}
      std::_Exit(good ? 0 : 1);
    }
    pids.push_back(pid);
  }
  int held = 0;
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    held += WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return held;
}

template <class Check>
bool holds_in_child(Check check) {
  return held_in_children(1, check) == 1;
}

/// While it lives no thread can be started: each would need a stack that no machine has.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t huge;
    ::pthread_getattr_default_np(&before_);
    ::pthread_attr_init(&huge);
    ::pthread_attr_setstacksize(&huge, std::size_t{1} << 50);
    ::pthread_setattr_default_np(&huge);
    ::pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace mercer::testing_support
