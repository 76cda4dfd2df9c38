// The environment variables that Mercer reads: one table, printed by `mercer env` and in the documentation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mercer {

struct EnvRow {
  const char* name;
  const char* default_text;
  const char* doc;
};

const std::vector<EnvRow>& env_table();

/// The value of a variable of the table, absent when unset or empty. Read at each call, so that tests may change it.
std::optional<std::string> env_text(std::string_view name);
/// A whole number in [low, high]; throws invalid_argument for anything else.
std::optional<std::int64_t> env_integer(std::string_view name, std::int64_t low, std::int64_t high);
/// True for 1, on, true, yes; false when unset or 0, off, false, no; throws invalid_argument for anything else.
bool env_flag(std::string_view name);

}  // namespace mercer
