// Text to expression: recursive descent with binding strengths (grammar: docs/reference/grammar.md).
//
//   formula    = { name "=" expression ";" } expression
//   expression = prefix { infix expression }            strengths in ir/expr/syntax.h
//   prefix     = ("-" | "!") prefix | power
//   power      = primary [ "^" prefix ]
//   primary    = number | name | name "(" arguments ")" | leaf [ "[" index "]" ] | "(" expression ")"
//   ptx        = "ptx" "(" string "," expression { "," expression } ";" [ name "=" ] expression ")"
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "formula/lexer.h"
#include "formula/suggest.h"
#include "ir/expr/ops.h"
#include "ir/expr/ptx.h"
#include "ir/expr/syntax.h"
#include "mercer/formula.h"

namespace mercer {
namespace formula {
namespace {

using ir::Op;
namespace strength = ir::strength;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), tokens_(tokenize(text)) {}

  Expr program() {
    if (tokens_.size() == 1) refuse(token(), "the text is empty");
    while (token().kind == Token::name && ahead().text == "=") binding();
    Expr result = expression(0);
    if (token().kind != Token::end) unexpected("an operator or the end of the text");
    return result;
  }

 private:
  /// The names that stand for state inside a reduce: those of `slots` components.
  struct Scope {
    int slots = 0;  // 0: outside
    bool incoming = false;
  };

  class Nested {
   public:
    explicit Nested(Parser& parser) : depth_(parser.nesting_) {
      if (++depth_ > ir::kMaxNesting) {
        parser.refuse(parser.token(), fmt::format("at most {} levels may be nested", ir::kMaxNesting));
      }
    }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    int& depth_;
  };

  // ---- tokens

  const Token& token() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool sees(std::string_view symbol) const { return token().kind == Token::symbol && token().text == symbol; }
  const Token& take() { return tokens_[at_++]; }

  bool accept(std::string_view symbol) {
    if (!sees(symbol)) return false;
    ++at_;
    return true;
  }

  void expect(std::string_view symbol, std::string_view why) {
    if (!accept(symbol)) unexpected(fmt::format("'{}' {}", symbol, why));
  }

  [[noreturn]] void refuse(const Token& where, const std::string& rule) const { fault(text_, where.begin, rule); }

  [[noreturn]] void unexpected(const std::string& wanted) const {
    const Token& found = token();
    if (found.kind == Token::bad) refuse(found, found.fault);
    if (found.kind == Token::end) refuse(found, fmt::format("expected {}, but the text ends", wanted));
    if (found.kind == Token::string) refuse(found, fmt::format("expected {}, not a text in quotes", wanted));
    if (found.text == "=") refuse(found, "a comparison is written '=='; a binding 'name = ...;' stands at the start");
    refuse_word_operator(found);
    const bool operand = found.kind == Token::name || found.kind == Token::number || found.text == "(";
    const std::string_view hint = operand && wanted.starts_with("an operator") ? "; a product is written '*'" : "";
    refuse(found, fmt::format("expected {}, not '{}'{}", wanted, found.text.substr(0, 40), hint));
  }

  void refuse_word_operator(const Token& found) const {
    const char* symbol = found.text == "and" ? "&&" : found.text == "or" ? "||" : found.text == "not" ? "!" : nullptr;
    if (symbol != nullptr) refuse(found, fmt::format("'{}' is written '{}'", found.text, symbol));
  }

  /// Builds a node; a rule that the builders check is reported at `where`.
  template <class Build>
  Expr built(const Token& where, Build build) const {
    try {
      return build();
    } catch (const Error& e) {
      std::string rule = e.what();
      if (rule.starts_with("formula: ")) rule.erase(0, 9);
      while (rule.ends_with('.')) rule.pop_back();
      refuse(where, rule);
    }
  }

  Expr node(const Token& where, Op op, std::vector<Expr> args) const {
    return built(where, [&] { return ir::make(op, std::move(args)); });
  }

  // ---- expressions

  void binding() {
    const Token& name = take();
    const bool reserved = ir::is_reserved(name.text);
    if (reserved) refuse(name, fmt::format("'{}' has a meaning of its own and cannot be bound", name.text));
    expect("=", "after the name");
    Expr value = expression(0);
    expect(";", "after a binding");
    bindings_[std::string(name.text)] = std::move(value);
  }

  Expr expression(int least) {
    Expr left = prefix();
    bool compared = false;
    while (true) {
      const ir::InfixRow* row = token().kind == Token::symbol ? ir::find_infix(token().text) : nullptr;
      if (row == nullptr || row->strength < least || row->strength >= strength::kPrefix) return left;
      const bool compares = row->strength == strength::kCompare;
      if (compares && compared) refuse(token(), "comparisons do not chain; write a < b && b < c");
      compared = compares;
      const Token& where = take();
      Expr right = expression(row->strength + 1);
      left = node(where, row->op, {std::move(left), std::move(right)});
    }
  }

  Expr prefix() {
    const Nested nested(*this);
    const Token& first = token();
    if (accept("!")) return node(first, Op::logical_not, {prefix()});
    if (!accept("-")) return power();
    // -2 is a number; -2^2 and -(2) are negations.
    const std::size_t begin = at_;
    Expr operand = prefix();
    const bool number = at_ == begin + 1 && tokens_[begin].kind == Token::number;
    return number ? ir::constant(-operand->value) : node(first, Op::neg, {std::move(operand)});
  }

  Expr power() {
    Expr base = primary();
    if (!sees("^")) return base;
    const Token& where = take();
    Expr exponent = prefix();
    return node(where, Op::pow, {std::move(base), std::move(exponent)});
  }

  Expr primary() {
    const Token& first = token();
    switch (first.kind) {
      case Token::number: return ir::constant(take().value);
      case Token::slot: return slot();
      case Token::name: return ahead().kind == Token::symbol && ahead().text == "(" ? call() : name();
      default: break;
    }
    if (!sees("(")) unexpected("an expression");
    take();
    Expr inside = expression(0);
    expect(")", "to close the parenthesis");
    return inside;
  }

  Expr slot() {  // $row0
    const Token& where = take();
    const std::size_t digits = std::min(where.text.find_first_of("0123456789"), where.text.size());
    const ir::WordRow* row = ir::find_word(ir::kSlotWords, where.text.substr(0, digits));
    int index = 0;
    const char* last = where.text.data() + where.text.size();
    const auto [end, error] = std::from_chars(where.text.data() + digits, last, index);
    if (row == nullptr || error != std::errc() || end != last) {
      refuse(where, "'$' starts an internal value: $row0, $col0, $acc0, $pair0, $a0 or $t0");
    }
    return ir::leaf(row->op, index);
  }

  Expr name() {
    const Token& where = take();
    const std::string_view word = where.text;
    if (scope_.slots > 0 && ir::is_state_name(word)) return state_value(where);
    if (const auto bound = bindings_.find(word); bound != bindings_.end()) return bound->second;
    if (const ir::WordRow* leaf = ir::find_word(ir::kLeafWords, word)) {
      if (accept("[")) index(*leaf);
      return ir::leaf(leaf->op);
    }
    refuse_word_operator(where);
    if (ir::is_reserved(word)) refuse(where, fmt::format("'{0}' needs its arguments: {0}(...)", word));
    if (sees("[")) refuse(token(), fmt::format("'{}' is a parameter and has no index", word));
    return param(std::string(word));
  }

  void index(const ir::WordRow& leaf) {
    if (leaf.index.empty()) refuse(tokens_[at_ - 1], fmt::format("'{}' has no index", leaf.text));
    const bool right = token().kind == Token::name && token().text == leaf.index && ahead().text == "]";
    if (!right) refuse(token(), fmt::format("'{0}' is written {0} or {0}[{1}]", leaf.text, leaf.index));
    at_ += 2;
  }

  Expr state_value(const Token& where) {
    const std::string_view word = where.text.substr(0, 40);
    const bool incoming = word[0] == 't';
    if (incoming && !scope_.incoming) refuse(where, "`finish` reads the state a alone; t belongs to combine and merge");
    int index = 0;
    const char* last = where.text.data() + where.text.size();
    const bool plain = where.text.size() == 1;
    const bool read = !plain && std::from_chars(where.text.data() + 1, last, index).ec == std::errc();
    if ((plain && scope_.slots > 1) || (!plain && (!read || index >= scope_.slots))) {
      const std::string names = scope_.slots == 1 ? std::string(1, word[0])
                                                  : fmt::format("{0}0 to {0}{1}", word[0], scope_.slots - 1);
      refuse(where, fmt::format("this reduce has {}, not '{}'", names, word));
    }
    return incoming ? mercer::incoming(index) : state(index);
  }

  // ---- calls

  Expr call() {
    const Token& where = take();
    const std::string_view word = where.text;
    take();  // "("
    if (word == "param") return parameter();
    if (word == "reduce") return reduction(where);
    if (word == "ptx") return ptx(where);
    const ir::OpInfo* row = ir::find_op(word);
    if (row != nullptr && !is_function(*row)) row = nullptr;
    const ir::WordRow* reduces = ir::find_word(ir::kReductionWords, word);
    if (row == nullptr && reduces == nullptr && word != "mean" && word != "square") unknown_function(where);
    std::vector<Expr> args = arguments();
    if (reduces != nullptr && (args.size() == 1 || row == nullptr)) {
      require_arity(where, args, 1);
      return node(where, reduces->op, std::move(args));
    }
    if (row == nullptr) {
      require_arity(where, args, 1);
      return built(where, [&] { return word == "mean" ? sum(args[0]) / feature_count() : square(args[0]); });
    }
    if (reduces == nullptr || args.empty()) require_arity(where, args, static_cast<std::size_t>(row->arity));
    if (reduces == nullptr) return node(where, row->op, std::move(args));
    Expr folded = args[0];  // max(a, b, c) = max(max(a, b), c)
    for (std::size_t i = 1; i < args.size(); ++i) folded = node(where, row->op, {folded, args[i]});
    return folded;
  }

  std::vector<Expr> arguments() {
    std::vector<Expr> args;
    if (accept(")")) return args;
    do args.push_back(expression(0));
    while (accept(","));
    expect(")", "or ',' after an argument");
    return args;
  }

  void require_arity(const Token& where, const std::vector<Expr>& args, std::size_t arity) const {
    if (args.size() == arity) return;
    const char* plural = arity == 1 ? "" : "s";
    refuse(where, fmt::format("'{}' takes {} argument{}, not {}", where.text, arity, plural, args.size()));
  }

  [[noreturn]] void unknown_function(const Token& where) const {
    const std::string_view word = where.text;
    const bool value = ir::find_word(ir::kLeafWords, word) || bindings_.contains(word);
    if (value) refuse(where, fmt::format("'{0}' is not a function; a product is written {0}*(...)", word));
    refuse(where, fmt::format("there is no function '{}'{}", word.substr(0, 40), function_hint(word)));
  }

  Expr parameter() {  // param(name) or param(name, default)
    if (token().kind != Token::name && token().kind != Token::number) unexpected("the name of the parameter");
    const Token& word = take();
    if (!ir::is_name(word.text)) refuse(word, "the name of the parameter comes first: param(bandwidth, 2)");
    const std::string name(word.text);
    if (accept(")")) return param(name);
    expect(",", "or ')' after the name");
    const bool negative = accept("-");
    if (token().kind != Token::number) unexpected("a number, the default");
    const double value = take().value;
    expect(")", "after the default");
    return param(name, negative ? -value : value);
  }

  // ---- ptx("text", a, b; meaning)

  Expr ptx(const Token& where) {
    const Nested nested(*this);
    if (token().kind != Token::string) unexpected("the PTX in quotes");
    const std::string_view text = take().text;
    std::vector<Expr> inputs;
    while (accept(",")) inputs.push_back(expression(0));
    expect(";", "and the meaning after the inputs");
    const int output = ptx_output();
    const Expr meaning = expression(0);
    expect(")", "after the meaning");
    return built(where, [&] { return ir::ptx_node(text, inputs, meaning, output); });
  }

  /// "out1=" in front of a meaning: which output of the text this is.
  int ptx_output() {
    if (token().kind != Token::name || ahead().text != "=") return 0;
    const std::string_view word = token().text;
    int output = 0;
    const auto [end, error] = std::from_chars(word.data() + std::min<std::size_t>(3, word.size()),
                                              word.data() + word.size(), output);
    if (!word.starts_with("out") || error != std::errc() || end != word.data() + word.size()) {
      refuse(token(), fmt::format("an output of PTX is out0, out1, ..., not '{}'", word.substr(0, 40)));
    }
    at_ += 2;
    return output;
  }

  // ---- reduce(term, combine, identity, merge=, finish=, associative=)

  Expr reduction(const Token& where) {
    const Nested nested(*this);
    Reduce parts;
    parts.term = tuple();
    const Scope combining{static_cast<int>(parts.term.size()), true};
    expect(",", "and the combine after the term");
    parts.combine = tuple(combining);
    expect(",", "and the identity after the combine");
    parts.identity = tuple();
    std::vector<std::string_view> seen;
    while (accept(",")) {
      const Token& key = token();
      if (key.kind != Token::name || ahead().text != "=") unexpected("merge=, finish= or associative=");
      at_ += 2;
      const bool repeated = std::find(seen.begin(), seen.end(), key.text) != seen.end();
      if (repeated) refuse(key, fmt::format("'{}' is given twice", key.text));
      seen.push_back(key.text);
      if (key.text == "merge") parts.merge = tuple(combining);
      else if (key.text == "finish") parts.finish = finish(combining.slots);
      else if (key.text == "associative") parts.associative = truth();
      else refuse(key, fmt::format("reduce has merge=, finish= and associative=, not '{}='", key.text.substr(0, 40)));
    }
    expect(")", "or ',' in reduce");
    return built(where, [&] { return reduce(parts); });
  }

  bool truth() {
    if (token().text != "true" && token().text != "false") unexpected("true or false");
    return take().text == "true";
  }

  Expr finish(int slots) {
    const Scope outside = std::exchange(scope_, Scope{slots, false});
    Expr value = expression(0);
    scope_ = outside;
    return value;
  }

  std::vector<Expr> tuple(const Scope& inside) {
    const Scope outside = std::exchange(scope_, inside);
    std::vector<Expr> parts = tuple();
    scope_ = outside;
    return parts;
  }

  /// (e, e, ...) or one expression, which may itself start with a parenthesis.
  std::vector<Expr> tuple() {
    if (!is_tuple()) return {expression(0)};
    take();
    return arguments();
  }

  bool is_tuple() const {
    if (!sees("(")) return false;
    int open = 0;
    for (std::size_t i = at_; i < tokens_.size(); ++i) {
      if (tokens_[i].kind != Token::symbol) continue;
      const std::string_view symbol = tokens_[i].text;
      if (symbol == "(" || symbol == "[") ++open;
      if (symbol == ")" || symbol == "]") --open;
      if (open == 0) return false;
      if (open == 1 && symbol == ",") return true;
    }
    return false;
  }

  std::string_view text_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  Scope scope_;
  std::map<std::string, Expr, std::less<>> bindings_;
};

}  // namespace
}  // namespace formula

Expr parse(std::string_view text) {
  require(text.size() <= ir::kMaxText, "formula: a text has at most {} bytes. Received {} bytes.", ir::kMaxText,
          text.size());
  return formula::Parser(text).program();
}

}  // namespace mercer
