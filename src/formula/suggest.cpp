// What a misspelt name may have meant: a word of another system, or the nearest spelling.
#include "formula/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "ir/expr/syntax.h"

namespace mercer::formula {
namespace {

/// Words of other systems, and what they are called here.
struct Synonym {
  std::string_view word, hint;
};
constexpr Synonym kSynonyms[] = {
    {"pow", "a power is written a^b"},      {"power", "a power is written a^b"},
    {"ln", "did you mean 'log'?"},          {"fabs", "did you mean 'abs'?"},
    {"sgn", "did you mean 'sign'?"},        {"arccos", "did you mean 'acos'?"},
    {"arcsin", "did you mean 'asin'?"},     {"maximum", "did you mean 'max'?"},
    {"minimum", "did you mean 'min'?"},     {"fmax", "did you mean 'max'?"},
    {"fmin", "did you mean 'min'?"},        {"if", "did you mean 'where'?"},
    {"select", "did you mean 'where'?"},    {"norm", "write sqrt(sum(square(...)))"},
    {"dot", "write sum(x*z)"},              {"tan", "write sin(t)/cos(t)"},
    {"reciprocal", "did you mean 'rcp'?"},  {"product", "did you mean 'prod'?"},
};

/// Options of calls, which are given among parameters.
constexpr std::string_view kOptions[] = {"row",      "col",      "w",         "out",   "i_offset",
                                         "j_offset", "progress", "workspace", "device"};

std::vector<std::string_view> function_names() {
  std::vector<std::string_view> names{"param", "reduce", "mean", "square", "ptx"};
  for (const ir::WordRow& row : ir::kReductionWords) names.push_back(row.text);
  for (const ir::OpInfo& row : ir::op_table()) {
    if (is_function(row)) names.emplace_back(row.name);
  }
  return names;
}

/// Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
std::size_t spelling_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

}  // namespace

bool is_function(const ir::OpInfo& row) {
  return ir::find_infix(row.op) == nullptr && row.op != ir::Op::neg && row.op != ir::Op::logical_not;
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  if (word.size() > 40) return best;
  // At most one fault in three letters, and two in all.
  std::size_t least = std::min<std::size_t>(2, (word.size() + 1) / 3) + 1;
  for (std::string_view candidate : candidates) {
    const std::size_t distance = spelling_distance(word, candidate);
    if (distance < least) least = distance, best = candidate;
  }
  return best;
}

std::string function_hint(std::string_view word) {
  for (const Synonym& synonym : kSynonyms) {
    if (synonym.word == word) return fmt::format(" ({})", synonym.hint);
  }
  const std::string_view near = nearest(word, function_names());
  return near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near);
}

std::string unknown_parameter(std::string_view name, const std::vector<std::string_view>& names) {
  std::vector<std::string_view> words = names;
  words.insert(words.end(), std::begin(kOptions), std::end(kOptions));
  const std::string_view near = nearest(name, words);
  return fmt::format("the formula has no parameter \"{}\"{}. It has {}.", name,
                     near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near),
                     names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
}

}  // namespace mercer::formula
