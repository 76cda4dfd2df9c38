// A checked call on a CUDA device: the kernels of its formula, compiled once.
#pragma once

#include <memory>

#include "backend/cuda/pairs/operations.h"
#include "ops/call/call.h"
#include "plan/gpu/ways.h"

namespace mercer::ops {

/// What a call asks of its device: its sizes, types and settings. Columns, neighbours, folds and what weighs the pairs
/// of a gradient are still to be filled in.
plan::Request request_of(const PairCall& call, const cuda::PairJob& job, plan::Verb verb, Context& context);

/// The way that the call takes, which a rehearsal lists.
plan::Choice choose_way(const PairCall& call, const cuda::PairJob& job, const plan::Request& request,
                        Context& context);

/// Kernels of a plan that a way offered. Throws inside a graph capture when they are still to be compiled.
std::shared_ptr<const cuda::PairKernels> cuda_kernels(const PairCall& call, const cuda::PairJob& job,
                                                      plan::GpuPairProblem problem, Dtype out, Context& context,
                                                      cuda::FirstCall first = cuda::FirstCall::quick);

/// Compiles the kernels of a gradient's plan and runs them.
void run_gradient(const cuda::PairJob& job, const plan::GradientPlan& plan, const cuda::FieldJob& operands,
                  Context& context);
/// A product with so many columns of v, whose values are stored.
void run_stored_product(const PairCall& call, const cuda::PairJob& job, const plan::StoredPlan& plan,
                        const cuda::JobOperand& v, std::int64_t columns, const cuda::JobMatrix& out, Context& context);

}  // namespace mercer::ops
