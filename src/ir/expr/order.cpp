// Compares op, then slot, value, name and flags, then arguments from the left. Equal arguments are passed over by their
// hash (proved by same()), so one path is walked and shared nodes cost nothing.
#include "ir/expr/order.h"

#include <bit>
#include <limits>
#include <string_view>
#include <tuple>

namespace mercer::ir {
namespace {

std::int64_t total_order(double v) {  // IEEE totalOrder as integers
  const auto bits = std::bit_cast<std::int64_t>(v);
  return bits < 0 ? bits ^ std::numeric_limits<std::int64_t>::max() : bits;
}

auto key(const Node& n) {
  return std::tuple(n.op, n.slot, total_order(n.value), std::string_view(n.name), n.has_default, n.has_merge,
                    n.associative, n.args.size());
}

}  // namespace

int compare(const Expr& a, const Expr& b) {
  if (same(a, b)) return 0;
  const auto p = key(*a), q = key(*b);
  if (p != q) return p < q ? -1 : 1;
  for (std::size_t i = 0; i < a->args.size(); ++i) {
    if (const int c = compare(a->args[i], b->args[i]); c != 0) return c;
  }
  return 0;
}

}  // namespace mercer::ir
