// Plans of a prepared formula for GPUs, which a context keeps.
#pragma once

#include "ops/call/prepared.h"
#include "ops/context.h"
#include "plan/gpu/ways.h"

namespace mercer::ops {

class FormulaPlans : public plan::Planner {
 public:
  FormulaPlans(const Formula::Prepared& formula, const plan::Costs& costs, Context& context)
      : Planner(costs), formula_(formula), state_(context.state()) {}
  plan::PlannedFormula formula() override {
    return {formula_.key, formula_.expression, formula_.form, formula_.is_field && formula_.reads_amplitude};
  }
  const plan::Forms& forms() override { return formula_.forms(); }
  const Expr& derivative() override { return formula_.field(); }

 private:
  std::shared_ptr<const plan::GpuPairPlan> kept(const std::string& key,
                                                const plan::MakePlan<plan::GpuPairPlan>& make) override {
    return state_.gpu_plans.get(key, make);
  }
  std::shared_ptr<const plan::GpuFieldPlan> kept(const std::string& key,
                                                 const plan::MakePlan<plan::GpuFieldPlan>& make) override {
    return state_.gpu_fields.get(key, make);
  }

  const Formula::Prepared& formula_;
  Context::State& state_;
};

}  // namespace mercer::ops
