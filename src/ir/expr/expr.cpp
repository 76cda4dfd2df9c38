// Nodes: making, hashing, comparing, rewriting.
//
// The hash covers the structure, so equality is decided by the hash first and proved by a walk of both graphs. Graphs
// share nodes: every walk keeps a memo, or x -> x*x -> ... would cost 2^depth. Recursion is bounded by kMaxDepth.
#include "ir/expr/expr.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "core/error.h"

namespace mercer {
namespace ir {
namespace {

constexpr std::uint64_t mix(std::uint64_t h, std::uint64_t v) {  // splitmix64's finaliser over the running state
  h += 0x9e3779b97f4a7c15u + v;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

std::uint64_t flags_of(const Node& n) {
  return std::uint64_t(n.has_default) | std::uint64_t(n.has_merge) << 1 | std::uint64_t(n.associative) << 2;
}

std::uint64_t hash_of(const Node& n) {
  std::uint64_t h = mix(std::uint64_t(n.op) << 8 | flags_of(n), std::uint64_t(std::uint32_t(n.slot)));
  h = mix(h, std::bit_cast<std::uint64_t>(n.value));
  for (char c : n.name) h = mix(h, std::uint64_t(static_cast<unsigned char>(c)));
  for (const Expr& a : n.args) h = mix(h, a->hash);
  return h;
}

bool same_node(const Node& a, const Node& b) {  // all but the arguments
  return a.hash == b.hash && a.op == b.op && flags_of(a) == flags_of(b) && a.slot == b.slot &&
         std::bit_cast<std::uint64_t>(a.value) == std::bit_cast<std::uint64_t>(b.value) && a.name == b.name &&
         a.args.size() == b.args.size();
}

void join(Uses& to, const Uses& from) {
  to.x |= from.x;
  to.z |= from.z;
  to.w |= from.w;
  to.row |= from.row;
  to.col |= from.col;
  to.index_i |= from.index_i;
  to.index_j |= from.index_j;
  to.param |= from.param;
  to.state |= from.state;
  to.accumulator |= from.accumulator;
  to.ptx |= from.ptx;
  to.pinned |= from.pinned;
  to.reduction |= from.reduction;
}

Uses uses_of_leaf(Op op) {
  switch (op) {
    case Op::x: return {.x = true};
    case Op::z: return {.z = true};
    case Op::w: return {.w = true};
    case Op::row: case Op::row_stage: return {.row = true};
    case Op::col: case Op::col_stage: return {.col = true};
    case Op::index_i: return {.index_i = true};
    case Op::index_j: return {.index_j = true};
    case Op::param: return {.param = true};
    case Op::state: case Op::incoming: return {.state = true};
    case Op::accumulator: case Op::pair_value: return {.accumulator = true};
    default: return {};
  }
}

Uses uses_of(const Node& n) {
  Uses u = uses_of_leaf(n.op);
  u.ptx = n.op == Op::ptx;
  u.pinned = n.op == Op::pinned;
  u.reduction = is_reduction(n.op);
  for (const Expr& a : n.args) join(u, a->uses);
  if (n.op == Op::reduce) {  // its states are bound in it; only a term could read an outer one
    u.state = false;
    const std::size_t terms = std::min(n.args.size(), static_cast<std::size_t>(std::max(n.slot, 0)));
    for (std::size_t s = 0; s < terms; ++s) u.state |= n.args[s]->uses.state;
  }
  return u;
}

using ExprSet = std::unordered_set<Expr, ExprHash, ExprEqual>;

struct Rewriter {
  const std::function<Expr(const Expr&)>& rule;
  std::unordered_map<const Node*, Expr> seen;  // original node -> result
  ExprMap<Expr> done;                          // node with rewritten arguments -> result
  ExprSet results;

  Expr operator()(const Expr& e) {
    if (auto it = seen.find(e.node().get()); it != seen.end()) return it->second;
    std::vector<Expr> args;
    args.reserve(e->args.size());
    for (const Expr& a : e->args) args.push_back((*this)(a));
    Expr node = with_args(e, std::move(args));
    auto it = done.find(node);
    if (it == done.end()) it = done.emplace(node, *results.insert(rule(node)).first).first;
    return seen.emplace(e.node().get(), it->second).first->second;
  }
};

struct Visitor {
  const std::function<void(const Expr&)>& visit;
  std::unordered_set<const Node*> seen;
  ExprSet distinct;

  void operator()(const Expr& e) {
    if (!seen.insert(e.node().get()).second) return;
    for (const Expr& a : e->args) (*this)(a);
    if (distinct.insert(e).second) visit(e);
  }
};

}  // namespace

Expr make(Node node) {
  node.depth = 0;
  for (const Expr& a : node.args) {
    require(!a.empty(), "formula: every argument must be an expression. Received an empty one.");
    node.depth = std::max(node.depth, a->depth + 1);
  }
  require(node.depth <= kMaxDepth, "formula: an expression may be at most {} operations deep. Received a deeper one.",
          kMaxDepth);
  node.hash = hash_of(node);
  node.uses = uses_of(node);
  return Expr(std::make_shared<const Node>(std::move(node)));
}

Expr make(Op op, std::vector<Expr> args) {
  Node node{.op = op};
  node.args = std::move(args);
  return make(std::move(node));
}

Expr leaf(Op op, int slot) {
  Node node{.op = op};
  node.slot = slot;
  return make(std::move(node));
}

Expr constant(double value) {
  Node node{.op = Op::constant};
  node.value = value;
  return make(std::move(node));
}

bool is_leaf(Op op) { return op <= Op::pair_value; }
bool is_reduction(Op op) { return op >= Op::sum; }

bool is_constant(const Expr& e, double value) {
  return e->op == Op::constant && std::bit_cast<std::uint64_t>(e->value) == std::bit_cast<std::uint64_t>(value);
}

Expr with_args(const Expr& e, std::vector<Expr> args) {
  const bool unchanged = std::equal(args.begin(), args.end(), e->args.begin(), e->args.end(),
                                    [](const Expr& a, const Expr& b) { return a.node() == b.node(); });
  if (unchanged) return e;
  Node node = *e;
  node.args = std::move(args);
  return make(std::move(node));
}

Expr rewrite(const Expr& root, const std::function<Expr(const Expr&)>& rule) {
  return Rewriter{rule, {}, {}, {}}(root);
}

std::vector<Expr> reductions_of(const Expr& e) {
  std::vector<Expr> found;
  ExprMap<bool> seen;
  std::vector<Expr> open{e};
  while (!open.empty()) {
    const Expr top = open.back();
    open.pop_back();
    if (!seen.emplace(top, true).second) continue;
    if (is_reduction(top->op)) found.push_back(top);
    else open.insert(open.end(), top->args.rbegin(), top->args.rend());
  }
  return found;
}

void for_each(const Expr& root, const std::function<void(const Expr&)>& visit) { Visitor{visit, {}, {}}(root); }

Expr substitute(const Expr& root, const ExprMap<Expr>& replacements) {
  std::unordered_map<const Node*, Expr> seen;
  // Top-down, so that a replaced node's own arguments are not replaced within it.
  std::function<Expr(const Expr&)> visit = [&](const Expr& e) -> Expr {
    if (auto it = seen.find(e.node().get()); it != seen.end()) return it->second;
    Expr result;
    if (auto it = replacements.find(e); it != replacements.end()) {
      result = it->second;
    } else {
      std::vector<Expr> args;
      for (const Expr& a : e->args) args.push_back(visit(a));
      result = with_args(e, std::move(args));
    }
    return seen.emplace(e.node().get(), result).first->second;
  };
  return visit(root);
}

}  // namespace ir

bool same(const Expr& a, const Expr& b) {
  if (a.node() == b.node()) return true;
  if (a.empty() || b.empty() || a->hash != b->hash) return false;
  std::vector<std::pair<const ir::Node*, const ir::Node*>> pending{{a.node().get(), b.node().get()}};
  std::unordered_map<const ir::Node*, const ir::Node*> proved;
  while (!pending.empty()) {
    const auto [p, q] = pending.back();
    pending.pop_back();
    if (p == q) continue;
    if (!ir::same_node(*p, *q)) return false;
    auto [it, fresh] = proved.emplace(p, q);
    if (!fresh && it->second == q) continue;
    it->second = q;
    for (std::size_t i = 0; i < p->args.size(); ++i) {
      pending.emplace_back(p->args[i].node().get(), q->args[i].node().get());
    }
  }
  return true;
}

}  // namespace mercer
