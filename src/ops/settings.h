// The options of a thread's calls, checked as a Context checks its own.
#pragma once

#include <optional>

#include "core/settings.h"

namespace mercer {

/// Throws invalid_argument for a number of threads that there is not, unsupported for a target that cannot run here.
Settings checked_settings(std::optional<int> threads, std::optional<Target> target, std::optional<Precision> precision);

}  // namespace mercer
