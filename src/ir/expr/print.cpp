// Expressions as text. parse(e.to_text()) is structurally equal to e (docs/reference/grammar.md).
//
// Parentheses are minimal and numbers are the shortest that read back to the same bits. An expression is a graph: a
// part used twice would be printed twice, and sixty such steps would fill the disk. So a large expression starts with
// bindings of its shared parts, and parts nested deeply are bound as well, which keeps the parser's recursion short:
//
//   s1 = abs(x - z); s2 = s1^p; sum(s2*log(s1))/sum(s2)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <unordered_map>
#include <vector>

#include "ir/expr/expr.h"
#include "ir/expr/ops.h"
#include "ir/expr/ptx.h"
#include "ir/expr/syntax.h"

namespace mercer {
namespace ir {

bool is_name(std::string_view word) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return !word.empty() && letter(word[0]) &&
         std::all_of(word.begin(), word.end(), [&](char c) { return letter(c) || digit(c); });
}

bool is_reserved(std::string_view word) {
  static constexpr std::string_view kWords[] = {"inf",    "nan",   "pi",   "param", "reduce", "mean", "square",
                                                "merge",  "finish", "true", "false", "pow",    "and",  "or",
                                                "not",    "associative", "ptx"};
  return find_word(kLeafWords, word) || find_word(kReductionWords, word) || find_op(word) ||
         std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords);
}

bool is_state_name(std::string_view word) {
  return !word.empty() && (word[0] == 'a' || word[0] == 't') &&
         std::all_of(word.begin() + 1, word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

namespace {

constexpr double kInlineNodes = 200;      // a printed tree of at most this many nodes needs no bindings
constexpr double kWorthBinding = 4;       // nodes of a shared part that earn it a name
constexpr std::uint32_t kInlineDepth = 64;  // two levels of nesting each stay below kMaxNesting

/// The names that stand for state inside a reduce.
struct Scope {
  int slots = 0;  // 0: outside
  bool incoming = false;
};

std::string number(double value) {
  if (std::isnan(value)) return std::signbit(value) ? "-nan" : "nan";
  std::string text = fmt::format("{}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

/// t*t with a compound t: square(t) is the same node.
bool is_square(const Expr& e) {
  return e->op == Op::mul && e->args[0].node() == e->args[1].node() && !is_leaf(e->args[0]->op);
}

class Printer {
 public:
  std::string print(const Expr& root) {
    // Equal parts become one node, so that pointers tell parts apart.
    const Expr shared = rewrite(root, [](const Expr& e) { return e; });
    choose_bindings(shared);
    std::string text;
    for (const Expr& part : order_) {
      text += fmt::format("{} = {}; ", names_.at(part.node().get()), body(part, 0, {}));
    }
    return text + body(shared, 0, {});
  }

 private:
  struct Measure {
    double nodes = 1;           // of the printed tree
    std::uint32_t uses = 0;
    std::uint32_t depth = 0;    // of the text printed inline
  };

  void choose_bindings(const Expr& root) {
    std::unordered_map<const Node*, Measure> measures;
    std::vector<Expr> nodes;
    std::string prefix = "s";
    for_each(root, [&](const Expr& e) {
      nodes.push_back(e);
      Measure& mine = measures[e.node().get()];
      const std::size_t printed = is_square(e) ? 1 : e->args.size();
      for (const Expr& arg : std::span(e->args).first(printed)) {
        Measure& its = measures[arg.node().get()];
        its.uses++;
        mine.nodes = std::min(mine.nodes + its.nodes, 1e9);
      }
      if (e->op != Op::param) return;
      while (e->name.starts_with(prefix)) prefix += "_";
    });
    const bool large = measures[root.node().get()].nodes > kInlineNodes;
    for (const Expr& e : nodes) {
      Measure& mine = measures[e.node().get()];
      for (const Expr& arg : e->args) mine.depth = std::max(mine.depth, measures[arg.node().get()].depth + 1);
      if (is_leaf(e->op) || e.node() == root.node()) continue;
      const bool repeated = large && mine.uses > 1 && mine.nodes >= kWorthBinding;
      if (!repeated && mine.depth < kInlineDepth) continue;
      mine.depth = 0;
      order_.push_back(e);
      names_.emplace(e.node().get(), fmt::format("{}{}", prefix, order_.size()));
    }
  }

  /// Text of `e` that binds at least as strongly as `least`.
  std::string text(const Expr& e, int least, const Scope& scope) {
    const auto name = names_.find(e.node().get());
    return name != names_.end() ? name->second : body(e, least, scope);
  }

  std::string body(const Expr& e, int least, const Scope& scope) {
    auto [written, own] = write(e, scope);
    return own < least ? "(" + written + ")" : written;
  }

  struct Written {
    std::string text;
    int strength = strength::kPrimary;
  };

  Written write(const Expr& e, const Scope& scope) {
    if (const InfixRow* row = find_infix(e->op)) return infix(e, *row, scope);
    if (const WordRow* row = find_word(kLeafWords, e->op)) return {std::string(row->text)};
    if (const WordRow* row = find_word(kSlotWords, e->op)) return {slot(e, *row, scope)};
    if (const WordRow* row = find_word(kReductionWords, e->op)) return {call(row->text, e, scope, 1)};
    switch (e->op) {
      case Op::constant: return {number(e->value), std::signbit(e->value) ? strength::kPrefix : strength::kPrimary};
      case Op::param: return {parameter(e, scope)};
      case Op::reduce: return {reduction(e, scope)};
      case Op::ptx: return {ptx(e, scope)};
      case Op::neg: return {"-" + operand(e->args[0], scope), strength::kPrefix};
      case Op::logical_not: return {"!" + text(e->args[0], strength::kPrefix, scope), strength::kPrefix};
      default: return {call(info(e->op).name, e, scope, e->args.size())};
    }
  }

  Written infix(const Expr& e, const InfixRow& row, const Scope& scope) {
    if (is_square(e) && !names_.contains(e->args[0].node().get())) return {call("square", e, scope, 1)};
    int left = row.strength, right = row.strength + 1;
    if (row.strength == strength::kCompare) left = right;
    if (row.strength == strength::kPower) left = strength::kPrimary, right = strength::kPrefix;
    return {text(e->args[0], left, scope) + std::string(row.printed) + text(e->args[1], right, scope), row.strength};
  }

  /// A minus in front of a bare number belongs to the number, so the negation of a number shows its parentheses.
  std::string operand(const Expr& e, const Scope& scope) {
    const bool bare = e->op == Op::constant && !std::signbit(e->value);
    return bare ? "(" + number(e->value) + ")" : text(e, strength::kPrefix, scope);
  }

  std::string call(std::string_view name, const Expr& e, const Scope& scope, std::size_t count) {
    return fmt::format("{}({})", name, list(e->args, 0, count, scope));
  }

  std::string list(const std::vector<Expr>& items, std::size_t begin, std::size_t count, const Scope& scope) {
    std::string joined;
    for (std::size_t i = begin; i < begin + count; ++i) {
      if (i > begin) joined += ", ";
      joined += text(items[i], 0, scope);
    }
    return joined;
  }

  std::string slot(const Expr& e, const WordRow& row, const Scope& scope) {
    const bool state = e->op == Op::state || (e->op == Op::incoming && scope.incoming);
    if (!state || e->slot >= scope.slots) return fmt::format("${}{}", row.text, e->slot);
    return scope.slots == 1 ? std::string(row.text) : fmt::format("{}{}", row.text, e->slot);
  }

  std::string parameter(const Expr& e, const Scope& scope) {
    if (e->has_default) return fmt::format("param({}, {})", e->name, number(e->value));
    const bool hidden = is_reserved(e->name) || (scope.slots > 0 && is_state_name(e->name));
    return hidden ? fmt::format("param({})", e->name) : e->name;
  }

  std::string ptx(const Expr& e, const Scope& scope) {
    const std::size_t inputs = e->args.size() - 1;
    const std::string read = inputs == 0 ? "" : ", " + list(e->args, 0, inputs, scope);
    const std::string output = ptx_writes_one(e->name) ? "" : fmt::format("out{}=", e->slot);
    return fmt::format("ptx(\"{}\"{}; {}{})", e->name, read, output, text(e->args.back(), 0, scope));
  }

  std::string reduction(const Expr& e, const Scope& scope) {
    const auto slots = static_cast<std::size_t>(e->slot);
    const auto tuple = [&](std::size_t index, const Scope& inside) {
      const std::string items = list(e->args, index * slots, slots, inside);
      return slots == 1 ? items : "(" + items + ")";
    };
    const Scope combining{e->slot, true};
    std::string written = fmt::format("reduce({}, {}, {}", tuple(0, scope), tuple(1, combining), tuple(2, scope));
    if (e->has_merge) written += ", merge=" + tuple(3, combining);
    const Expr& finish = e->args.back();
    const bool plain = slots == 1 && finish->op == Op::state && finish->slot == 0;
    if (!plain) written += ", finish=" + text(finish, 0, Scope{e->slot, false});
    if (e->associative) written += ", associative=true";
    return written + ")";
  }

  std::vector<Expr> order_;
  std::unordered_map<const Node*, std::string> names_;
};

}  // namespace
}  // namespace ir

std::string Expr::to_text() const {
  if (empty()) return {};
  return ir::Printer().print(*this);
}

}  // namespace mercer
