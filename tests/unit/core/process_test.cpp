// Programs run as processes: what goes in and out, and how they may end.
#include "core/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "core/testing.h"

namespace mercer {
namespace {

ProcessResult run_shell(const std::string& script, std::string_view input = {}) {
  return run_process("/bin/sh", {"-c", script}, input);
}

TEST(Process, OutputIsWhatTheProgramWrites) {
  std::string input;
  for (int i = 0; i < 1'000'000; ++i) input.push_back(static_cast<char>(i * 37 % 251));
  EXPECT_EQ(run_process("/bin/cat", {}, input).output, input);
  EXPECT_EQ(run_process("/bin/cat", {}, "").output, "");
  EXPECT_EQ(run_process("/bin/echo", {"two words", ""}, "").output, "two words \n");
}

TEST(Process, FailuresAreTold) {
  const auto why = [](const ProcessResult& result) {
    EXPECT_FALSE(result.output);
    return result.why_not;
  };
  EXPECT_NE(why(run_shell("echo half; exit 3")).find("/bin/sh: it ended with status 3"), std::string::npos);
  EXPECT_NE(why(run_shell("echo half; kill -9 $$")).find("it ended by signal 9"), std::string::npos);
  EXPECT_NE(why(run_process("/nowhere/at/all", {}, "")).find("/nowhere/at/all: No such file"), std::string::npos);
}

TEST(Process, OtherFilesAreNotHandedOn) {
  const int kept = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  ASSERT_GT(kept, 2);
  EXPECT_EQ(run_shell("[ -e /proc/self/fd/" + std::to_string(kept) + " ] && echo open || echo closed").output,
            "closed\n");
  ::close(kept);
}

TEST(Process, ManyAtOnce) {
  std::vector<std::thread> threads;
  std::vector<std::string> outputs(16);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    threads.emplace_back([&outputs, i] {
      outputs[i] = run_process("/bin/cat", {}, std::string(100'000, static_cast<char>('a' + i))).output.value_or("");
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < outputs.size(); ++i)
    EXPECT_EQ(outputs[i], std::string(100'000, static_cast<char>('a' + i)));
}

/// Where the caller ignores SIGCHLD, or blocks signals, the program still runs and its output counts.
TEST(Process, SignalsOfTheCaller) {
  EXPECT_TRUE(testing_support::holds_in_child([] {
    ::signal(SIGCHLD, SIG_IGN);
    ::signal(SIGPIPE, SIG_IGN);
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, nullptr);
    return run_process("/bin/cat", {}, "kept").output == "kept" &&
           !run_shell("kill -PIPE $$; echo survived", "").output.value_or("").starts_with("survived");
  }));
}

TEST(Process, ProgramsBesideThisOne) {
  EXPECT_TRUE(program_beside("mercer-nvrtc"));
  EXPECT_FALSE(program_beside("no-such-program"));
}

TEST(Process, ReadingAndWritingFail) {
  EXPECT_FALSE(read_to_end(-1));
  EXPECT_FALSE(write_whole(-1, "x"));
}

}  // namespace
}  // namespace mercer
