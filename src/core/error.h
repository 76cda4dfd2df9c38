// Throwing with the one message form: "op: rule. Received what."
#pragma once

#include <fmt/format.h>

#include "mercer/error.h"

namespace mercer {

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
