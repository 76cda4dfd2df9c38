// The tokens of a formula's text, and its error message with a caret under the fault.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mercer::formula {

struct Token {
  enum Kind { end, number, name, slot, symbol, string, bad } kind = end;
  std::string_view text;   // for `slot` without its '$', for `string` without its quotes
  std::size_t begin = 0;   // byte offset in the whole text
  double value = 0;        // number
  std::string fault;       // bad: what is wrong with it
};

/// Splits the text; the last token is `end`. What cannot be a token becomes `bad`, refused when it is reached, so that
/// the first fault of a text is the one reported.
std::vector<Token> tokenize(std::string_view text);

/// Throws Error(invalid_argument): "formula: <rule>. Received:", the line of the fault, and a caret under byte `at`.
[[noreturn]] void fault(std::string_view text, std::size_t at, const std::string& rule);

}  // namespace mercer::formula
