#include "ops/gpu/cuda_call.h"

#include <algorithm>

#include "backend/cuda/pairs/pair_values.h"
#include "core/error.h"
#include "core/key.h"
#include "ops/call/formula_plans.h"
#include "ops/dump.h"
#include "ops/tune/tuned_plan.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::ops {
namespace {

/// What the context has under this key; kernels that were quick ones are full ones from the second call on. A rehearsal
/// that loads nothing leaves nothing there.
template <class Kernels, class Make>
std::shared_ptr<const Kernels> kept(RecentCache<Kernels>& cache, const std::string& key, const cuda::PairJob& job,
                                    const Make& make) {
  const cuda::Rehearsal* rehearsal = job.rehearsal();
  if (rehearsal != nullptr && rehearsal->purpose != cuda::Rehearsal::Purpose::kernels) {
    const bool of_this_device = rehearsal->device == nullptr;
    if (auto known = of_this_device ? cache.find(key) : nullptr) return known;
    return make();
  }
  std::shared_ptr<const Kernels> made;
  auto kernels = cache.get(key, [&] {
    cuda::require_no_capture(job);
    return made = make();
  });
  if (kernels == made || !kernels->are_quick()) return kernels;  // or those of a first call on another thread
  kernels = cuda::finish_kernels(*kernels, job);
  cache.replace(key, kernels);
  return kernels;
}

RecentCache<cuda::PairKernels>& pairs_of(const cuda::PairJob& job, Context& context) {
  return job.queue->trial != nullptr ? job.queue->trial->pairs : context.state().cuda_pairs;
}

/// Kernels of a gradient's pairs. `are_stored`: values, whose tile may be a measured one.
std::shared_ptr<const cuda::PairKernels> pair_kernels(const plan::KeptPlan<plan::GpuPairPlan>& pairs, bool are_stored,
                                                      const cuda::PairJob& job, Context& context) {
  if (!pairs) return nullptr;
  return kept(pairs_of(job, context), cache_key(pairs.key, job.device), job, [&] {
    const auto plan = are_stored ? dumped(plan_for(pairs.plan, job)) : pairs.plan;
    return cuda::compile_pair_kernels(plan, job.type, job, cuda::FirstCall::quick);
  });
}

std::shared_ptr<const cuda::FieldKernels> field_kernels(const plan::KeptPlan<plan::GpuFieldPlan>& field,
                                                        const cuda::PairJob& job, Context& context) {
  if (!field) return nullptr;
  return kept(context.state().cuda_fields, cache_key(field.key, job.device), job,
              [&] { return cuda::compile_field_kernels(field.plan, job, cuda::FirstCall::quick); });
}

}  // namespace

plan::Request request_of(const PairCall& call, const cuda::PairJob& job, plan::Verb verb, Context& context) {
  const CudaDevice& device = job.hardware();
  plan::Request request;
  request.verb = verb;
  request.m = job.x.count;
  request.n = job.z.count;
  request.k = job.features;
  request.type = request.out = job.type;
  request.points = job.x.points.dtype;
  request.symmetric = call.symmetric();
  request.by_value =
      std::all_of(job.params.begin(), job.params.end(), [](const cuda::JobParam& param) { return param.is_number(); });
  request.precision = context.precision();
  request.part_bytes = job.part_bytes;
  request.device = {device.capability(), device.multiprocessors, device.shared_per_block,
                    job.costs().by_warps != 0};
  return request;
}

plan::Choice choose_way(const PairCall& call, const cuda::PairJob& job, const plan::Request& request,
                        Context& context) {
  FormulaPlans plans(call.formula(), job.costs(), context);
  const plan::ForcedWays* forced = context.state().forced_ways.load();
  plan::Choice choice = plan::choose(request, job.costs(), *forced, plans);
  if (cuda::Rehearsal* rehearsal = job.rehearsal()) rehearsal->ways.emplace_back(choice.way->name);
  return choice;
}

void run_gradient(const cuda::PairJob& job, const plan::GradientPlan& plan, const cuda::FieldJob& operands,
                  Context& context) {
  const auto field = field_kernels(plan.field, job, context), extra = field_kernels(plan.extra, job, context);
  const auto pairs = pair_kernels(plan.pairs, field != nullptr, job, context);
  cuda::gradient(pairs.get(), field.get(), job, operands, extra.get());
}

void run_stored_product(const PairCall& call, const cuda::PairJob& job, const plan::StoredPlan& plan,
                        const cuda::JobOperand& v, std::int64_t columns, const cuda::JobMatrix& out, Context& context) {
  const auto pairs = cuda_kernels(call, job, plan.pairs, job.type, context);
  const auto field = field_kernels(plan.product, job, context);
  cuda::product(*pairs, *field, job, v, columns, out);
}

std::shared_ptr<const cuda::PairKernels> cuda_kernels(const PairCall& call, const cuda::PairJob& job,
                                                      plan::GpuPairProblem problem, Dtype out, Context& context,
                                                      cuda::FirstCall first) {
  const auto compiled = [&](bool normal_reciprocals) {
    problem.params.normal_reciprocals = normal_reciprocals;
    const std::string key = cache_key(call.formula().key, problem, out, job.device);
    auto kernels = kept(pairs_of(job, context), key, job, [&] {
      FormulaPlans plans(call.formula(), job.costs(), context);
      return cuda::compile_pair_kernels(dumped(plan_for(plans.plan(problem), job)), out, job, first);
    });
    if (kernels->first.bare && first != cuda::FirstCall::on_bare_sums)
      fail(ErrorKind::compile,
           "{}: the formula's kernels must compile; calls of pairwise go on without. Received an error, which the log "
           "has as a warning.",
           job.op);
    return kernels;
  };
  if (problem.params.normal_reciprocals) {
    auto kernels = compiled(true);
    const auto is_normal = [&](const auto& own) { return cuda::reciprocals_are_normal(*own->plan, job); };
    if (is_normal(kernels) && std::all_of(kernels->products.sums.begin(), kernels->products.sums.end(), is_normal))
      return kernels;
  }
  return compiled(false);
}

}  // namespace mercer::ops
