// The logger. It holds no lock, so a child forked while another thread was logging cannot hang on it.
#include "core/system/log.h"

#include <unistd.h>

#include <array>
#include <atomic>

#include "core/hash.h"
#include "core/system/env.h"
#include "core/system/log_sink.h"

namespace mercer {
namespace {

constexpr const char* kLevelNames[] = {"off", "error", "warning", "info", "debug"};
constexpr int kUnread = -1;
std::atomic<int> level_now{kUnread};
std::atomic<LogSink> sink_now{nullptr};

LogLevel level_from_environment() {
  const std::string text = env_text("MERCER_LOG").value_or("warning");
  for (int level = 0; level < 5; ++level) {
    if (text == kLevelNames[level]) return static_cast<LogLevel>(level);
  }
  log_message(LogLevel::warning,
              fmt::format("MERCER_LOG: must be off, error, warning, info or debug. Received {}.", text));
  return LogLevel::warning;
}

}  // namespace

LogLevel log_level() {
  int level = level_now.load(std::memory_order_relaxed);
  if (level == kUnread) {
    level = static_cast<int>(level_from_environment());
    level_now.store(level, std::memory_order_relaxed);
  }
  return static_cast<LogLevel>(level);
}

void set_log_level(LogLevel level) { level_now.store(static_cast<int>(level), std::memory_order_relaxed); }

void set_log_sink(LogSink sink) { sink_now.store(sink, std::memory_order_release); }

std::string_view name_of(LogLevel level) { return kLevelNames[static_cast<int>(level)]; }

void log_message(LogLevel level, std::string_view message) {
  const LogSink sink = sink_now.load(std::memory_order_acquire);
  if (sink != nullptr && sink(level, message)) return;
  const std::string line = fmt::format("mercer: {}: {}\n", kLevelNames[static_cast<int>(level)], message);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

bool first_time(std::string_view text) {
  // Open addressing without deletion. When all slots are taken, messages are repeated rather than lost.
  static constinit std::array<std::atomic<std::uint64_t>, 1024> seen{};
  const std::uint64_t hash = hash64(text) | 1;  // 0 marks an empty slot
  for (std::size_t probe = 0; probe < seen.size(); ++probe) {
    auto& slot = seen[(hash + probe) % seen.size()];
    std::uint64_t found = 0;
    if (slot.compare_exchange_strong(found, hash, std::memory_order_relaxed)) return true;
    if (found == hash) return false;
  }
  return true;
}

}  // namespace mercer
