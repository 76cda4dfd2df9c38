// Tokens, and the caret under a fault.
#include "formula/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <numbers>

#include "core/error.h"

namespace mercer::formula {
namespace {

constexpr std::size_t kExcerpt = 96;  // code points of a line that a message shows

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// Bytes of the UTF-8 sequence at the start of `text`; 0 where there is no valid one.
std::size_t sequence_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const bool leads = lead < 0x80 || (lead >= 0xc2 && lead < 0xf5);
  const std::size_t length = !leads ? 0 : lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  return length;
}

/// A character as a message may show it: control characters and broken UTF-8 become '?'.
std::string shown(std::string_view character) {
  const bool control = static_cast<unsigned char>(character[0]) < 0x20 || character[0] == 0x7f;
  return control || sequence_length(character) == 0 ? "?" : std::string(character);
}

std::vector<std::string_view> characters(std::string_view line) {
  std::vector<std::string_view> out;
  while (!line.empty()) {
    const std::size_t length = std::max<std::size_t>(sequence_length(line), 1);
    out.push_back(line.substr(0, length));
    line.remove_prefix(length);
  }
  return out;
}

std::size_t number_length(std::string_view text) {
  std::size_t i = 0;
  const auto digits = [&] {
    const std::size_t from = i;
    while (i < text.size() && is_digit(text[i])) ++i;
    return i - from;
  };
  std::size_t count = digits();
  if (i < text.size() && text[i] == '.') ++i, count += digits();
  if (count == 0) return 0;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    const std::size_t mantissa = i++;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) i = mantissa;
  }
  return i;
}

void read_number(Token& token) {
  const char* last = token.text.data() + token.text.size();
  const auto [end, error] = std::from_chars(token.text.data(), last, token.value);
  if (error == std::errc() && end == last) return;
  token.kind = Token::bad;
  token.fault = fmt::format("'{}' is outside the range of a double", token.text.substr(0, 40));
}

struct Mistaken {
  std::string_view text, rule;
};

// Longer ones first: "**" before "*".
constexpr std::string_view kSymbols[] = {"<=", ">=", "==", "!=", "&&", "||", "<", ">", "=", "!", "+", "-", "*",
                                         "/",  "^",  "(",  ")",  "[",  "]",  ",", ";"};
constexpr Mistaken kMistaken[] = {
    {"**", "a power is written '^'"},
    {"//", "a division is written '/'; round down with floor(...)"},
    {"&", "'and' is written '&&'"},
    {"|", "'or' is written '||'; an absolute value is written abs(...)"},
    {"~", "'not' is written '!'"},
    {"%", "there is no remainder; write t - floor(t/d)*d"},
    {"?", "a choice is written where(condition, a, b)"},
    {"\u2212", "a minus is written '-'"},
    {"\u00b7", "a product is written '*'"},
    {"\u00d7", "a product is written '*'"},
    {"\u00b2", "a square is written '^2'"},
};

Token symbol(std::string_view rest) {
  Token token;
  token.kind = Token::symbol;
  const auto is_mistaken = [&](const Mistaken& m) { return rest.starts_with(m.text); };
  for (std::string_view text : kSymbols) {
    if (rest.starts_with(text) && !rest.starts_with("**") && !rest.starts_with("//")) {
      token.text = rest.substr(0, text.size());
      return token;
    }
  }
  token.kind = Token::bad;
  token.text = rest.substr(0, std::max<std::size_t>(sequence_length(rest), 1));
  const auto* mistaken = std::find_if(std::begin(kMistaken), std::end(kMistaken), is_mistaken);
  token.fault = mistaken != std::end(kMistaken) ? std::string(mistaken->rule)
                                                : fmt::format("unexpected character '{}'", shown(token.text));
  return token;
}

Token quoted(std::string_view rest) {
  Token token;
  const std::size_t end = rest.find('"', 1);
  token.kind = end == std::string_view::npos ? Token::bad : Token::string;
  token.text = rest.substr(0, end == std::string_view::npos ? 1 : end + 1);
  if (token.kind == Token::bad) token.fault = "a text in quotes ends with '\"'";
  return token;
}

Token next(std::string_view rest) {
  Token token;
  if (rest[0] == '"') return quoted(rest);
  if (const std::size_t length = number_length(rest)) {
    token.kind = Token::number;
    token.text = rest.substr(0, length);
    read_number(token);
    return token;
  }
  const std::size_t start = rest[0] == '$';
  std::size_t length = start;
  while (length < rest.size() && (is_letter(rest[length]) || (length > start && is_digit(rest[length])))) ++length;
  if (length == start) return symbol(rest);
  token.kind = start ? Token::slot : Token::name;
  token.text = rest.substr(0, length);
  return token;
}

/// Numbers that have names are tokens of numbers, so that -inf is one number as -2 is.
void read_named_number(Token& token) {
  if (token.kind != Token::name) return;
  if (token.text == "inf") token.value = std::numeric_limits<double>::infinity();
  else if (token.text == "nan") token.value = std::numeric_limits<double>::quiet_NaN();
  else if (token.text == "pi") token.value = std::numbers::pi;
  else return;
  token.kind = Token::number;
}

}  // namespace

std::vector<Token> tokenize(std::string_view text) {
  std::vector<Token> tokens;
  std::size_t at = 0, last = 0;
  while (true) {
    while (at < text.size() && is_space(text[at])) ++at;
    if (at == text.size()) break;
    Token token = next(text.substr(at));
    read_named_number(token);
    token.begin = at;
    at += token.text.size();
    last = at;
    if (token.kind == Token::slot || token.kind == Token::string) token.text.remove_prefix(1);
    if (token.kind == Token::string) token.text.remove_suffix(1);
    tokens.push_back(std::move(token));
  }
  tokens.emplace_back().begin = last;
  return tokens;
}

void fault(std::string_view text, std::size_t at, const std::string& rule) {
  at = std::min(at, text.size());
  const std::size_t before = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
  const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
  const std::string_view line = text.substr(begin, text.find('\n', at) - begin);
  const std::vector<std::string_view> points = characters(line);
  std::size_t column = 0;
  for (std::size_t offset = begin; column < points.size() && offset + points[column].size() <= at; ++column) {
    offset += points[column].size();
  }
  std::size_t first = 0, last = points.size();
  if (last > kExcerpt) {
    first = column > kExcerpt / 2 ? std::min(column - kExcerpt / 2, last - kExcerpt) : 0;
    last = first + kExcerpt;
  }
  std::string excerpt = first > 0 ? "..." : "", caret = first > 0 ? "   " : "";
  for (std::size_t i = first; i < last; ++i) {
    const bool tab = points[i] == "\t";  // kept in both lines, so that the caret stands right at any tab width
    excerpt += tab ? "\t" : shown(points[i]);
    if (i < column) caret += tab ? '\t' : ' ';
  }
  if (last < points.size()) excerpt += "...";
  fail(ErrorKind::invalid_argument, "formula: {}. Received:\n  {}\n  {}^", rule, excerpt, caret);
}

}  // namespace mercer::formula
