// Throwing with the one message form: "op: rule. Received what."
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "mercer/error.h"

namespace mercer {

template <class T>
concept HasText = requires(const T& value) {
  { value.to_text() } -> std::convertible_to<std::string>;
};

/// The host has no memory left (Python: MemoryError).
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& message) : message_(message) {}
  const char* what() const noexcept override { return message_.what(); }

 private:
  std::runtime_error message_;  // whose copies share their text
};

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

/// Refuses an argument unless `ok`.
template <class... Args>
void require(bool ok, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) [[unlikely]] throw Error(ErrorKind::invalid_argument, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace mercer

/// The text of a tensor, a device, a shape is made where a message is, not in every call that could send one.
template <mercer::HasText T>
struct fmt::formatter<T> : fmt::formatter<std::string_view> {
  auto format(const T& value, fmt::format_context& context) const {
    const std::string text = value.to_text();
    return fmt::formatter<std::string_view>::format(text, context);
  }
};
