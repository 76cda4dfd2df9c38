// Where messages go in place of stderr, for a host that has a log of its own.
#pragma once

#include <string_view>

#include "core/system/log.h"

namespace mercer {

/// Takes a message, on any thread and under any lock, so that it must not wait; false leaves it to stderr.
using LogSink = bool (*)(LogLevel level, std::string_view message) noexcept;
void set_log_sink(LogSink sink);
/// "off" to "debug".
std::string_view name_of(LogLevel level);

}  // namespace mercer
