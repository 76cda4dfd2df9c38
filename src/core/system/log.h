// Messages to stderr, filtered by MERCER_LOG. A fallback is told once: log_once.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace mercer {

enum class LogLevel : std::uint8_t { off, error, warning, info, debug };

/// The least severe level that is printed. MERCER_LOG is read at the first message.
LogLevel log_level();
void set_log_level(LogLevel level);
/// Prints "mercer: <level>: <message>" in one write.
void log_message(LogLevel level, std::string_view message);
/// True for the first call with this text in the process.
bool first_time(std::string_view text);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level <= log_level()) log_message(level, fmt::format(format, std::forward<Args>(args)...));
}

/// Like log, but equal messages are printed once in the life of the process.
template <class... Args>
void log_once(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level > log_level()) return;
  const std::string message = fmt::format(format, std::forward<Args>(args)...);
  if (first_time(message)) log_message(level, message);
}

}  // namespace mercer
