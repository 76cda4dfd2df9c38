// A planner for tests that ask ways for the plans of a formula.
#pragma once

#include <memory>
#include <string>

#include "ir/passes/passes.h"
#include "mercer/formula.h"
#include "plan/gpu/ways.h"

namespace mercer::cuda {

/// Plans of one formula, as ways ask for them; nobody keeps them.
class UnkeptPlans : public plan::Planner {
 public:
  UnkeptPlans(const char* text, const plan::Costs& costs)
      : Planner(costs), text_(text), formula_(ir::simplify(parse(text))), forms_(plan::forms_of(formula_)) {}
  plan::PlannedFormula formula() override { return {text_, formula_}; }
  const plan::Forms& forms() override { return forms_; }
  const Expr& derivative() override { return formula_; }  // nobody asks for it

 private:
  std::shared_ptr<const plan::GpuPairPlan> kept(const std::string&,
                                                const plan::MakePlan<plan::GpuPairPlan>& make) override {
    return make();
  }
  std::shared_ptr<const plan::GpuFieldPlan> kept(const std::string&,
                                                 const plan::MakePlan<plan::GpuFieldPlan>& make) override {
    return make();
  }

  std::string text_;
  Expr formula_;
  plan::Forms forms_;
};

}  // namespace mercer::cuda
