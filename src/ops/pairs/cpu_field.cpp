#include "ops/pairs/cpu_field.h"

#include "core/key.h"
#include "ops/dump.h"

namespace mercer::ops {
namespace {

/// Columns n of a block, about.
constexpr int kBlockColumns = 192;

}  // namespace

plan::PairProblem block_problem(const PairCall& call, Context& context) {
  plan::PairProblem problem = pair_problem(call, context);
  problem.block_columns = kBlockColumns;
  return problem;
}

PlaneShape plane_shape(const cpu::PairProgram* pairs) {
  if (pairs == nullptr) return {kBlockColumns, 0};
  const int width = static_cast<int>(pairs->plan().plane_width());
  return {width, pairs->plan().tile.rows * width};
}

std::shared_ptr<const cpu::FieldProgram> cpu_field(const std::string& key, PlaneShape planes,
                                                   const plan::PairProblem& problem, std::int64_t outputs,
                                                   std::int64_t features, Context& context,
                                                   const std::function<ir::FieldSplit()>& field) {
  const std::string whole = key_of(cache_key(key, planes.width, planes.stride, outputs, features), problem);
  return context.state().fields.get(whole, [&] {
    plan::FieldProblem of;
    of.type = problem.type;
    of.target = problem.target;
    of.cpu = problem.cpu;
    of.outputs = outputs;
    of.features = features;
    of.field = field();
    of.n_capacity = planes.width;
    of.pair_stride = planes.stride;
    return std::make_shared<const cpu::FieldProgram>(dumped(plan::plan_field(of)));
  });
}

}  // namespace mercer::ops
