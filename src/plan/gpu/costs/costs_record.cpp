#include "plan/gpu/costs/costs_record.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <map>

#include "plan/gpu/costs/costs_fields.h"

namespace mercer::plan {
namespace {

constexpr std::string_view kVersion = "1";

/// Every number as text that reads as the same number.
std::map<std::string_view, std::string> texts_of(const Costs& costs) {
  std::map<std::string_view, std::string> texts;
  each_cost(costs, [&](const char* name, const auto& number, auto...) { texts[name] = fmt::format("{}", number); });
  return texts;
}

template <class Number>
bool read(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end && number >= 0 && std::isfinite(static_cast<double>(number));
}

/// The line before the first end of line, which the text loses.
std::optional<std::string_view> take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

}  // namespace

std::string costs_record(const Costs& costs, const Costs& base) {
  const auto of_base = texts_of(base);
  std::string record = fmt::format("{}\n", kVersion);
  for (const auto& [name, text] : texts_of(costs))
    if (text != of_base.at(name)) record += fmt::format("{} {}\n", name, text);
  return record;
}

std::optional<Costs> costs_from_record(std::string_view record, const Costs& base) {
  if (take_line(record) != kVersion) return std::nullopt;
  std::map<std::string_view, std::string_view> given;
  while (const auto line = take_line(record)) {
    const std::size_t space = line->find(' ');
    if (space == std::string_view::npos || !given.emplace(line->substr(0, space), line->substr(space + 1)).second)
      return std::nullopt;
  }
  Costs costs = base;
  bool reads = record.empty();
  each_cost(costs, [&](const char* name, auto& number, auto...) {
    const auto found = given.find(name);
    if (found == given.end()) return;
    reads = read(found->second, number) && reads;
    given.erase(found);
  });
  return reads && given.empty() ? std::optional(costs) : std::nullopt;
}

}  // namespace mercer::plan
