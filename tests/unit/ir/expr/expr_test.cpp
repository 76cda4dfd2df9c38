#include "ir/expr/expr.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ir/expr/ops.h"
#include "ir/expr/order.h"
#include "mercer/error.h"
#include "unit/ir/pair_fixture.h"

namespace mercer::ir {
namespace {

const auto [x, z] = points();

TEST(Expr, EqualityIsStructural) {
  EXPECT_TRUE(same(sqrt(sum(square(x - z))), sqrt(sum(square(x - z)))));
  EXPECT_FALSE(same(x - z, z - x));
  EXPECT_FALSE(same(Expr(0.0), Expr(-0.0)));
  EXPECT_TRUE(same(Expr(std::nan("")), Expr(std::nan(""))));
  EXPECT_FALSE(same(param("p"), param("p", 1.0)));
  EXPECT_FALSE(same(param("p"), param("q")));
  EXPECT_FALSE(same(state(0), state(1)));
}

TEST(Expr, SharedGraphsAreWalkedOnce) {
  Expr a = x, b = x;  // 2^900 paths
  for (int i = 0; i < 900; ++i) {
    a = a * a;
    b = b * b;
  }
  EXPECT_TRUE(same(a, b));
  EXPECT_EQ(compare(a, b), 0);
  int visited = 0;
  for_each(a, [&](const Expr&) { ++visited; });
  EXPECT_EQ(visited, 901);
}

TEST(Expr, DepthIsLimited) {
  Expr e = x;
  for (std::uint32_t i = 0; i < kMaxDepth; ++i) e = -e;
  EXPECT_EQ(e->depth, kMaxDepth);
  EXPECT_THROW(-e, Error);
}

TEST(Expr, RewriteMakesEqualNodesOne) {
  const Expr e = rewrite(abs(x - z) + sqrt(abs(x - z)), [](const Expr& n) { return n; });
  EXPECT_EQ(e->args[0].node(), e->args[1]->args[0].node());
  EXPECT_TRUE(same(rewrite(x + z, [](const Expr& n) { return n->op == Op::z ? weights() : n; }), x + weights()));
}

TEST(Expr, SubstituteDoesNotEnterReplacements) {
  EXPECT_TRUE(same(substitute(x + z, {{x, z}, {z, x}}), z + x));
  EXPECT_TRUE(same(bind(param("p") * x, {{"p", param("p") + 1.0}}), (param("p") + 1.0) * x));
}

TEST(Expr, ParametersInOrderOfFirstUse) {
  const auto found = parameters(exp(-sum(pow(abs(x - z), param("p"))) / param("b", 2.0)) + param("p", 3.0));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].first, "p");
  EXPECT_EQ(found[0].second, 3.0);
  EXPECT_EQ(found[1].first, "b");
  EXPECT_EQ(found[1].second, 2.0);
}

TEST(Expr, OrderIsTotal) {
  const std::vector<Expr> sorted = {-1.0,        -0.0,       0.0,        2.0, x,      z,      weights(), index_i(),
                                    param("a"), param("b"), -x,         abs(x), abs(z), x + z,  x * z};
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    for (std::size_t j = 0; j < sorted.size(); ++j) {
      const int c = compare(sorted[i], sorted[j]);
      EXPECT_EQ((c > 0) - (c < 0), (i > j) - (i < j)) << i << " " << j;
    }
  }
}

TEST(Expr, ReduceChecksItsParts) {
  EXPECT_THROW(reduce({}), Error);
  EXPECT_THROW(fold({x}, {}, {0.0}), Error);
  EXPECT_THROW(fold({x, z}, {state(0), state(1)}, {0.0, 0.0}), Error);
  Reduce no_merge;
  no_merge.term = no_merge.combine = no_merge.identity = {state()};
  no_merge.associative = true;
  EXPECT_THROW(reduce(no_merge), Error);
  for (const char* name : {"", "h + 1", "a-b", "2h", "h ", "\u03b3"}) EXPECT_THROW(param(name), Error) << name;
  EXPECT_NO_THROW(param("x"));  // written param(x), apart from the points
  EXPECT_THROW(Expr() + x, Error);
}

TEST(Ops, TableIsInEnumOrder) {
  for (const OpInfo& row : op_table()) EXPECT_EQ(info(row.op).name, row.name);
  EXPECT_THROW(info(Op::x), Error);
  EXPECT_THROW(info(Op::sum), Error);
  EXPECT_EQ(find_op("xlogy")->op, Op::xlogy);
  EXPECT_EQ(find_op("+"), nullptr);
  EXPECT_EQ(find_op("nothing"), nullptr);
}

}  // namespace
}  // namespace mercer::ir
