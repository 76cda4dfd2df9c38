// Rows of costs as text: a line for the version, then the name and the value of each number that is not that of a base.
// each_cost(row, visit(name, number, …)) names the numbers of a row.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace mercer::plan {

inline constexpr std::string_view kCostsVersion = "1";

/// Every number as text that reads as the same number.
template <class Row>
std::map<std::string_view, std::string> texts_of_costs(const Row& row) {
  std::map<std::string_view, std::string> texts;
  each_cost(row, [&](const char* name, const auto& number, auto...) { texts[name] = fmt::format("{}", number); });
  return texts;
}

template <class Row>
std::string record_of_costs(const Row& row, const Row& base) {
  const auto of_base = texts_of_costs(base);
  std::string record = fmt::format("{}\n", kCostsVersion);
  for (const auto& [name, text] : texts_of_costs(row))
    if (text != of_base.at(name)) record += fmt::format("{} {}\n", name, text);
  return record;
}

template <class Number>
bool read_cost(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end && number >= 0 && std::isfinite(static_cast<double>(number));
}

/// The line before the first end of line, which the text loses.
inline std::optional<std::string_view> take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

/// `base` with the numbers of a record; nothing for any other text: another version, an unknown name, a name twice, a
/// number that is negative or not finite, or a fraction where the row counts.
template <class Row>
std::optional<Row> costs_of_record(std::string_view record, const Row& base) {
  if (take_line(record) != kCostsVersion) return std::nullopt;
  std::map<std::string_view, std::string_view> given;
  while (const auto line = take_line(record)) {
    const std::size_t space = line->find(' ');
    if (space == std::string_view::npos || !given.emplace(line->substr(0, space), line->substr(space + 1)).second)
      return std::nullopt;
  }
  Row row = base;
  bool reads = record.empty();
  each_cost(row, [&](const char* name, auto& number, auto...) {
    const auto found = given.find(name);
    if (found == given.end()) return;
    reads = read_cost(found->second, number) && reads;
    given.erase(found);
  });
  return reads && given.empty() ? std::optional(row) : std::nullopt;
}

}  // namespace mercer::plan
