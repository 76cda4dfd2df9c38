// Fields that are computed again at pairs out of range: two of the same pairs have it alike, or neither has it.
#include "plan/forms/field_beyond.h"

#include <gtest/gtest.h>

#include "ir/passes/passes.h"
#include "ir/passes/safe_field.h"
#include "mercer/mercer.h"
#include "plan/gpu/field.h"

namespace mercer::plan {
namespace {

/// The derivatives of a formula by x and by w.
ir::FieldSplit fields_of(const char* text, double most_scale = 0) {
  const Expr formula = ir::simplify(parse(text)), by_point = ir::simplify(differentiate(formula, points().x));
  return ir::split_field(by_point, ir::simplify(differentiate(formula, weights())), {.most_scale = most_scale});
}
ir::FieldSplit scaled_fields_of(const char* text) { return fields_of(text, ir::most_scale(Dtype::float64)); }

std::shared_ptr<const GpuFieldPlan> planned(const ir::FieldSplit& field, const ir::FieldSplit& scaled, bool is_extra) {
  GpuFieldProblem problem;
  problem.field = field;
  problem.planes = static_cast<int>(field.pair_outputs.size());
  problem.is_extra = is_extra;
  return plan_gpu_field(problem, scaled);
}

void expect_same_parameters(const ir::FieldSplit& one, const ir::FieldSplit& other) {
  ASSERT_EQ(one.params.size(), other.params.size());
  ASSERT_EQ(one.uniforms.size(), other.uniforms.size());
  for (std::size_t p = 0; p < one.params.size(); ++p) EXPECT_TRUE(same(one.params[p], other.params[p])) << p;
  for (std::size_t u = 0; u < one.uniforms.size(); ++u) EXPECT_TRUE(same(one.uniforms[u], other.uniforms[u])) << u;
}

/// Every slot that a program reads is one of a parameter or uniform.
void expect_slots_within(const ir::Program& program, const ir::FieldSplit& field) {
  for (const ir::Input& input : program.inputs) {
    if (input.site != ir::Site::param) continue;
    EXPECT_LT(input.slot, static_cast<int>(field.params.size() + field.uniforms.size()));
  }
}

constexpr const char* kFormulas[] = {"log(sum(w*abs(x-z)^3))", "exp(-h*sum(w*abs(x-z)^3)^(1/3)/(1+g))"};

TEST(FieldBeyond, FieldsOfTheSamePairsReadTheSameParameters) {
  for (const char* text : kFormulas) {
    const auto own = planned(fields_of(text), scaled_fields_of(text), false);
    const auto extra = planned(fields_of(text), scaled_fields_of(text), true);
    ASSERT_TRUE(own->beyond && extra->beyond) << text;
    expect_same_parameters(own->problem.field, extra->problem.field);
    for (const auto* plan : {own.get(), extra.get()})
      for (const ir::Program* program : {&plan->beyond.largest, &plan->beyond.update, &plan->beyond.epilogue,
                                         &plan->beyond.phi, &plan->beyond.extra})
        expect_slots_within(*program, plan->problem.field);
  }
}

/// Pairs are marked for both of them: a field that would take a mark for a number leaves none to the other one.
TEST(FieldBeyond, AFieldThatHidesMarksLeavesNoneToTheOther) {
  for (const char* text : kFormulas)
    for (const bool own_hides : {false, true}) {
      ir::FieldSplit field = fields_of(text);
      Expr& hides = own_hides ? field.field : field.extra;
      for (std::size_t p = 0; p < field.pair_outputs.size(); ++p)
        hides = max(ir::leaf(ir::Op::pair_value, static_cast<int>(p)), points().x) * hides;
      for (const bool is_extra : {false, true}) {
        const auto plan = planned(field, scaled_fields_of(text), is_extra);
        EXPECT_FALSE(plan->beyond) << text;
        expect_same_parameters(plan->problem.field, field);
      }
    }
}

/// A product of matrices, by x, keeps the range of the sums; so does the square, by w, next to it.
TEST(FieldBeyond, LinearFieldsHaveNone) {
  const char* const text = "exp(-h*sum(w*(x-z)^2)^(1/2))";
  for (const bool is_extra : {false, true}) {
    const auto plan = planned(fields_of(text), scaled_fields_of(text), is_extra);
    EXPECT_FALSE(plan->beyond);
    expect_same_parameters(plan->problem.field, fields_of(text));
  }
}

}  // namespace
}  // namespace mercer::plan
