#include <gtest/gtest.h>

#include <string>

#include "ir/passes/passes.h"
#include "mercer/error.h"
#include "unit/ir/pair_fixture.h"

namespace mercer::ir {
namespace {

const auto [x, z] = points();

/// The message of the refusal; empty when there is none.
std::string refusal(const Expr& e, bool field = false) {
  try {
    verify(e, field ? Form::field : Form::pairs);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("Received"), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

TEST(Verify, AcceptsFormulas) {
  const Expr mean = sum(x) / feature_count();
  EXPECT_EQ(refusal(sqrt(sum(square(x - z)))), "");
  EXPECT_EQ(refusal(sum((x - mean) * z)), "");
  EXPECT_EQ(refusal(sum(square(x - mean) * row_value()) * z, true), "");
  EXPECT_EQ(refusal(where(equal(index_i(), index_j()), 1.0, row_value() + col_value())), "");
  EXPECT_EQ(refusal(fold({x * z}, {max(state(), incoming())}, {param("p", 0.0)})), "");
}

TEST(Verify, RefusesFeaturesOutsideReductions) {
  EXPECT_NE(refusal(x - z).find("inside a reduction"), std::string::npos);
  EXPECT_NE(refusal(sum(x) + weights()).find("Received w"), std::string::npos);
  EXPECT_EQ(refusal(x - z, true), "");
}

TEST(Verify, RefusesTwoSidedReductionsInReductions) {
  EXPECT_NE(refusal(sum(x * sum(x * z))).find("one side only"), std::string::npos);
  EXPECT_NE(refusal(sum(x * sum(x * col_value()))).find("one side only"), std::string::npos);
  EXPECT_NE(refusal(sum(x * max(x + index_j()))).find("max(...)"), std::string::npos);
  EXPECT_EQ(refusal(sum(x * z / sum(weights()))), "");
}

TEST(Verify, RefusesStatesOutOfPlace) {
  EXPECT_NE(refusal(state() + 1.0), "");
  EXPECT_NE(refusal(sum(x + incoming())), "");
  const auto made = [](const Expr& combine, const Expr& identity, const Expr& finish) {
    return fold({x}, {combine}, {identity}, finish);
  };
  EXPECT_EQ(refusal(made(state() + incoming(), 0.0, state())), "");
  EXPECT_NE(refusal(made(state(1) + incoming(), 0.0, state())).find("number of states"), std::string::npos);
  EXPECT_NE(refusal(made(state() + incoming(), state(), state())), "");
  EXPECT_NE(refusal(made(state() + incoming(), 0.0, incoming())), "");
  EXPECT_NE(refusal(made(state() + sum(x), 0.0, state())).find("no reduction"), std::string::npos);
  EXPECT_NE(refusal(made(state() + incoming(), 0.0, state() * z)), "");
}

TEST(Verify, RefusesBrokenNodes) {
  EXPECT_NE(refusal(make(Op::add, {row_value()})).find("takes 2 arguments"), std::string::npos);
  EXPECT_NE(refusal(make(Op::sum, {x, z})), "");
  EXPECT_NE(refusal(leaf(Op::accumulator, 0)), "");
  EXPECT_NE(refusal(make(Op::reduce, {x})), "");
  EXPECT_NE(refusal(Expr()), "");
}

TEST(Uses, ListsLeaves) {
  const Uses u = uses(sum(x * weights()) + col_value() * param("p"));
  EXPECT_TRUE(u.x && u.w && u.col && u.param);
  EXPECT_FALSE(u.z || u.row || u.index_i || u.index_j || u.state || u.accumulator);
  EXPECT_TRUE(uses(state() + incoming()).state);
  EXPECT_FALSE(uses(fold({x}, {state() + incoming()}, {0.0})).state);
}

}  // namespace
}  // namespace mercer::ir
