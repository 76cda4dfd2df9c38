// Refusing an argument for its element type; Python makes mercer.DtypeError of it.
#pragma once

#include <utility>

#include "core/error.h"

namespace mercer {

struct DtypeError : Error {
  explicit DtypeError(const std::string& message) : Error(ErrorKind::invalid_argument, message) {}
};

template <class... Args>
void require_dtype(bool ok, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) [[unlikely]] throw DtypeError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace mercer
